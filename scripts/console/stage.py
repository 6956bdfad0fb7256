"""A target with volumes, peers, a session under load and damaged blocks, and its console: real processes in a temporary directory."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def eventually(what, is_true, patience_s=90):
    until = time.monotonic() + patience_s
    while True:
        found = is_true()
        if found:
            return found
        if time.monotonic() > until:
            raise AssertionError(f"gave up waiting: {what}")
        time.sleep(0.1)


class Stage:
    def __init__(self, program, directory):
        self.program = os.path.abspath(program)
        self.directory = Path(directory)
        self.port = free_port()
        self.processes = []
        self.environment = {**os.environ, "XDG_CONFIG_HOME": str(self.directory / "config")}

    def path(self, name):
        return str(self.directory / name)

    def command(self, *arguments):
        return [self.program, *arguments]

    def run(self, *arguments, text=None):
        done = subprocess.run(
            self.command(*arguments), env=self.environment, input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, arguments, log, **more):
        with open(self.path(log), "a", encoding="utf-8") as file:
            process = subprocess.Popen(arguments, env=self.environment, stderr=file, stdin=subprocess.DEVNULL, **more)
        self.processes.append(process)
        return process

    def prepare(self):
        for name in ["target", "alice"]:
            self.run("identity", "new", "--out", self.path(f"{name}.identity"))
        self.run("key", "new", "--out", self.path("volume.key"))
        self.run("key", "new", "--for", "wrapping", "--out", self.path("wrapping.key"))
        alice = self.run("identity", "show", self.path("alice.identity")).strip()
        self.target_key = self.run("identity", "show", self.path("target.identity")).strip()
        (self.directory / "volumes").mkdir()
        (self.directory / "strongroom.toml").write_text(
            f"""root = "{self.path('volumes')}"
listen = ["127.0.0.1:{self.port}"]
node_key = "{self.path('target.identity')}"
base_name = "iqn.2026-11.org.strongroom"
[limits]
idle_close_s = 3600
[[peer]]
name = "alice"
key = "{alice}"
initiators = ["iqn.2026-11.example:alice"]
volumes = ["*"]
[[peer]]
name = "<script>alert(1)</script>"
key = "{self.target_key}"
initiators = ["*"]
""",
            encoding="utf-8",
        )
        root = ["--root", self.path("volumes")]
        self.run("volume", "create", "vault", "--size", "256MiB", *root)
        self.run("volume", "create", "archive", "--size", "1GiB", *root)
        wrapped = ["--custody", "target", "--wrapping-key", self.path("wrapping.key")]
        self.run("volume", "create", "records", "--size", "64MiB", *wrapped, *root)
        (self.directory / "image").write_bytes(os.urandom(24 << 20))

    def serve(self):
        self.target = self.start(
            self.command("serve", "--config", self.path("strongroom.toml")), "serve.log", stdout=subprocess.DEVNULL
        )
        eventually("the target serves", self.answers)

    def answers(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop_target(self):
        self.target.send_signal(signal.SIGTERM)
        self.target.wait(60)

    def url(self, volume):
        return f"strongroom://127.0.0.1:{self.port}/{volume}"

    def alice(self, *arguments, key=True):
        more = ["--key-file", self.path("volume.key")] if key else []
        return [
            *arguments,
            "--identity",
            self.path("alice.identity"),
            "--initiator-name",
            "iqn.2026-11.example:alice",
            "--target-key",
            self.target_key,
            *more,
        ]

    def fill(self):
        for volume, key in [("vault", True), ("archive", True), ("records", False)]:
            self.run(*self.alice("volume", "format", self.url(volume), "--yes", key=key))
            self.run(*self.alice("copy", self.path("image"), self.url(volume), "--allow-smaller", key=key))
        for snapshot in ["monday", "tuesday"]:
            self.run("volume", "snapshot", "create", f"vault@{snapshot}", "--config", self.path("strongroom.toml"))
        self.run("volume", "clone", "vault@monday", "vault-test", "--config", self.path("strongroom.toml"))

    def damage(self, volume):
        """Some blocks rot while the target is down."""
        files = [path for path in (self.directory / "volumes" / volume / "store").rglob("*") if path.is_file()]
        if not files:
            files = [self.directory / "volumes" / volume / "store"]
        largest = max(files, key=lambda path: path.stat().st_size)
        with open(largest, "r+b") as file:
            for at in [8 << 20, (8 << 20) + 4096, (8 << 20) + 8192, 14 << 20]:
                file.seek(at)
                old = file.read(64)
                file.seek(at)
                file.write(bytes(byte ^ 0xFF for byte in old))

    def attach(self, volume, key=True, more=()):
        path = self.path(f"{volume}.sock")
        arguments = self.alice("nbd", "serve", self.url(volume), "--socket", path, *more, key=key)
        self.start(self.command(*arguments), f"{volume}.log", stdout=subprocess.DEVNULL)
        eventually(f"{volume} is attached", lambda: os.path.exists(path))
        return f"nbd+unix:///{volume}?socket={path}"

    def load(self, uri):
        """Writes and reads, again and again."""
        image = self.path("image")
        loop = f"while nbdcopy '{image}' '{uri}' && nbdcopy '{uri}' null: ; do sleep 0.4; done"
        self.start(["sh", "-c", loop], "load.log", stdout=subprocess.DEVNULL, start_new_session=True)

    def console(self, *more):
        console = self.start(
            self.command("console", "--listen", "127.0.0.1:0", "--config", self.path("strongroom.toml"), *more),
            "console.log",
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in console.stdout:
            if re.match(r"http://127\.0\.0\.1:\d+/login#[0-9a-f]{64}$", line.strip()):
                return console, line.strip()
        raise AssertionError("the console prints no link: " + (self.directory / "console.log").read_text())

    def join(self, invitation, name):
        environment = {**self.environment, "XDG_CONFIG_HOME": self.path(name)}
        joined = subprocess.run(
            self.command("join"), env=environment, input=invitation, capture_output=True, text=True, check=False
        )
        assert joined.returncode == 0, joined.stderr

    def end(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGTERM)
                process.kill()
                process.wait()
