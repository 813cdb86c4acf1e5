"""`python -m servebench.testing.groundtruth PORT STEP_US TTFT_US [--cpu N] [--until-eof]`."""

from __future__ import annotations

import argparse
import gc
import os
import sys

from servebench.testing.groundtruth.server import Server


def main() -> None:
    """Serve; the first line on standard output names the address."""
    parser = argparse.ArgumentParser(prog="python -m servebench.testing.groundtruth", description=__doc__)
    parser.add_argument("port", type=int, metavar="PORT", help="on 127.0.0.1; 0 picks a free one")
    parser.add_argument("step_us", type=int, metavar="STEP_US", help="microseconds from token to token")
    parser.add_argument("ttft_us", type=int, metavar="TTFT_US", help="microseconds to the first token, at least")
    parser.add_argument("--cpu", type=int, help="run on this core only")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    args = parser.parse_args()
    if args.step_us < 1 or args.ttft_us < 0:
        parser.error("STEP_US is at least 1, TTFT_US at least 0")
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    server = Server(args.port, args.step_us, args.ttft_us)
    gc.disable()  # a collection would show as a late step
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.run(sys.stdin.fileno() if args.until_eof else None)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
