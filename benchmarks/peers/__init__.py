"""Other systems, each in its own virtual environment, measured like Octavo and with the same requests.

`peer` runs one as a child process. The drivers (`vllm_driver`, `openvino_driver`, `llama_driver`) are what that process
runs: they import their system and `driver`, which tells how requests come and answers go, and nothing else.
"""
