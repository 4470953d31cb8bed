"""The soak: hundreds of mixed requests from many clients at once, every answer checked against a reference.

`workload` draws the requests, `client` sends them, `checks` and `reference` judge the answers, `memory` and `stack`
watch the processes, `soak` runs it all.
"""
