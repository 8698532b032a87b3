"""`send GROUP PORT N` sends N datagrams; `receive GROUP PORT` joins and counts until nothing arrives for a second."""

import socket
import struct
import sys

SIZE = 8192


def send(group, port, number):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        for _ in range(number):
            sender.sendto(bytes(SIZE), (group, port))


def receive(group, port, address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
        receiver.bind(("", port))
        member = struct.pack("4s4s", socket.inet_aton(group), socket.inet_aton(address))
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        print("joined", flush=True)
        receiver.settimeout(20)
        came = 0
        try:
            while True:
                came += len(receiver.recv(SIZE))
                receiver.settimeout(1)
        except TimeoutError:
            print(came, flush=True)


if __name__ == "__main__":
    what, group, port, more = sys.argv[1:]
    if what == "send":
        send(group, int(port), int(more))
    else:
        receive(group, int(port), more)
