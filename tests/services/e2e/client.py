"""A client process: starts one long answer, says so when its first tokens are here, and reads on.

Arguments: the gateway's address, the prompt, and how many sequences.
"""

import sys

from octavo.client import Client


def main() -> None:
    address, prompt, n = sys.argv[1:]
    with Client(address) as client:
        for number, _ in enumerate(client.generate(prompt, n=int(n), max_tokens=480, ignore_eos=True)):
            if number == 3:
                print("reading", flush=True)


main()
