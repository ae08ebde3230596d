"""Puts jobs, or reserves all and looks for the promised ones. Arguments: socket, put or get, count."""
import socket
import sys
import time

path, task, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(100):
    try:
        server = socket.socket(socket.AF_UNIX)
        server.connect(path)
        break
    except OSError:
        time.sleep(0.02)
else:
    sys.exit("no server")
stream = server.makefile("rwb")


def ask(line):
    stream.write(line)
    stream.flush()
    return stream.readline()


body = lambda n: b"%04d" % n * 300
if task == "put":
    for n in range(count):
        assert ask(b"put 1 0 60 %d\r\n%s\r\n" % (len(body(n)), body(n))).startswith(b"INSERTED")
        print("ack", n, flush=True)
else:
    found = set()
    while (answer := ask(b"reserve-with-timeout 0\r\n")).startswith(b"RESERVED"):
        found.add(stream.read(int(answer.split()[2]) + 2)[:-2])
    for n in range(count):
        if body(n) not in found:
            sys.exit(f"job {n} was promised and is not there")
