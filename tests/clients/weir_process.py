"""A running Weir. WEIR_BIN is the binary; its listeners are on ports of the system's choice."""

import json
import os
import subprocess
import threading
import urllib.request

DEADLINE = 20


class Weir:
    def __init__(self, path, config):
        path.write_text(config + "\nadmin: { address: 127.0.0.1:0 }\n")
        command = [os.environ["WEIR_BIN"], "--log-format", "json", "run", "-c", path]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.address, self.admin = None, None
        log = []
        for line in self.process.stdout:
            log.append(line.decode())
            entry = json.loads(line)
            if "listening" in entry.get("message", ""):
                if "listener" in entry:
                    self.address = entry["address"]
                else:
                    self.admin = entry["address"]
            if self.address and self.admin:
                break
        else:
            raise RuntimeError("".join(log))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def metric(self, name, **labels):
        """The sum of a metric's values with these labels."""
        text = urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=DEADLINE).read().decode()
        lines = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in wanted))

    def cpu_seconds(self):
        """Time that the process has used so far, in user and kernel mode."""
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ends the process after it has drained. Returns its exit status."""
        self.process.terminate()
        return self.process.wait(DEADLINE)
