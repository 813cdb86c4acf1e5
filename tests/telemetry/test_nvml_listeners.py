import socket

import pytest

from servebench.telemetry.listeners import gpu_server_pids

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTEN, ESTABLISHED = "0A", "01"


@pytest.fixture
def proc(tmp_path):
    """Makes a /proc: proc.process(pid, parent, links...), proc.sockets([(port, state, inode)])."""

    class Proc:
        path = tmp_path / "proc"

        def process(self, pid, parent, *links):
            folder = self.path / str(pid) / "fd"
            folder.mkdir(parents=True)
            (folder.parent / "stat").write_text(f"{pid} (python -m) x) S {parent} {pid} 0 0")
            for number, link in enumerate(links):
                (folder / str(number)).symlink_to(link)

        def sockets(self, *rows, table="tcp"):
            (self.path / "net").mkdir(parents=True, exist_ok=True)
            lines = [
                f"   {n}: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 0000  0 0 {inode} 1"
                for n, (port, state, inode) in enumerate(rows)
            ]
            (self.path / "net" / table).write_text(HEAD + "\n".join(lines))

    return Proc()


def test_a_server_that_has_a_gpu_open(proc):
    proc.sockets((8000, LISTEN, 111), (9000, LISTEN, 222))
    proc.process(10, 1, "socket:[111]", "/dev/nvidia0")
    proc.process(20, 1, "socket:[222]", "/dev/nvidia1")
    assert gpu_server_pids(8000, proc.path) == [10]
    assert gpu_server_pids(9000, proc.path) == [20]


def test_the_engine_below_the_frontend_has_it(proc):
    proc.sockets((8000, LISTEN, 111), table="tcp6")
    proc.process(10, 1, "socket:[111]")
    proc.process(11, 10, "/dev/nvidiactl", "/dev/nvidia3")
    proc.process(12, 11)
    proc.process(30, 1, "/dev/nvidia3")
    assert gpu_server_pids(8000, proc.path) == [10, 11, 12]


def test_a_proxy_uses_no_gpu(proc):
    proc.sockets((8000, LISTEN, 111))
    proc.process(10, 1, "socket:[111]")
    proc.process(20, 1, "/dev/nvidia0")
    assert gpu_server_pids(8000, proc.path) == []


def test_a_client_of_the_port_does_not_listen(proc):
    proc.sockets((8000, ESTABLISHED, 111))
    proc.process(10, 1, "socket:[111]", "/dev/nvidia0")
    assert gpu_server_pids(8000, proc.path) == []


def test_the_control_device_alone_is_no_use(proc):
    proc.sockets((8000, LISTEN, 111))
    proc.process(10, 1, "socket:[111]", "/dev/nvidiactl")
    assert gpu_server_pids(8000, proc.path) == []


def test_a_machine_without_proc_has_none(tmp_path):
    assert gpu_server_pids(8000, tmp_path) == []


def test_this_machine_can_be_looked_at(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert gpu_server_pids(server.getsockname()[1]) == []  # we listen there, and use no GPU
