"""A server-like JAX process: it opens a profiler port, steps until its input closes, and logs when each step was.

    python jax_server.py PORT LOG

A line of the log is a step's number, its start and its end, in ns of CLOCK_REALTIME. Each step is two matrix products,
then a pause of 5 ms. It prints "ready" when the first step was compiled.
"""

import json
import pathlib
import select
import sys
import time

import jax
import jax.numpy as jnp


@jax.jit
def advance(x):
    return jnp.tanh(jnp.tanh(x @ x) @ x) * 0.1


def main(port, log):
    server = jax.profiler.start_server(port)
    x = advance(jnp.ones((256, 256))).block_until_ready()
    print("ready", flush=True)
    number = 0
    while not select.select([sys.stdin], [], [], 0.005)[0]:
        start = time.time_ns()
        with jax.profiler.StepTraceAnnotation("serve", step_num=number):
            advance(x).block_until_ready()
        log.write(json.dumps([number, start, time.time_ns()]) + "\n")
        log.flush()
        number += 1
    del server


if __name__ == "__main__":
    with pathlib.Path(sys.argv[2]).open("w") as file:
        main(int(sys.argv[1]), file)
