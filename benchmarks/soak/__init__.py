"""The soak: hundreds of mixed requests from many clients at once, every answer checked against a reference.

`workload`, `sampling`, `prompts` and `invalid` draw the requests, `client` sends them, `pins` and `script` do what
happens beside them. `checks`, `prefix_match`, `judge` and `reference` judge the answers; `memory`, `totals` and `stack`
watch the processes; `run` runs it all.
"""
