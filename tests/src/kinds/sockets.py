import os, select, socket, struct, threading
FORKS = True
UNIX, PACKETS = socket.AF_UNIX, socket.SOCK_SEQPACKET

def begin(what):
    if not FORKS:
        threading.Thread(target=what, daemon=True).start()
    elif os.fork() == 0:
        what()
        os._exit(0)

def listen(name, kind=socket.SOCK_STREAM):
    listening = socket.socket(UNIX, kind)
    listening.bind(name)
    listening.listen(3)
    return listening

def connect(name, kind=socket.SOCK_STREAM):
    connection = socket.socket(UNIX, kind)
    connection.connect(name)
    return connection

def serve():
    connection = connect("/tmp/served")
    while connection.recv(9):
        connection.send(b"answered")

os.chdir("/tmp")
listening = listen("/tmp/served")
begin(serve)
other = listening.accept()[0]
near = connect("/tmp/served")
far = listening.accept()[0]
near.send(b"un")
near.send(b"read")
waiting = connect("/tmp/served")
abstract = listen("\0abstract served")
by_abstract = connect("\0abstract served")
accepted, _ = abstract.accept()
abstract.close()
removed = listen("/tmp/removed")
by_removed = connect("/tmp/removed")
at_removed = removed.accept()[0]
os.unlink("/tmp/removed")
relative = listen("relative")
by_relative = connect("./relative")
at_relative = relative.accept()[0]
gone = listen("/tmp/gone")
by_gone = [socket.socket(UNIX) for _ in "ab"]
for client in by_gone:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    client.connect("/tmp/gone")
at_gone = [gone.accept()[0] for _ in "ab"]
gone.close()
again = listen("/tmp/again")
by_again, at_again = connect("/tmp/again"), again.accept()[0]
again.close()
os.unlink("/tmp/again")
again = listen("/tmp/again")
half, whole = socket.socketpair()
half.send(b"the rest")
half.shutdown(socket.SHUT_WR)
closed, closing = socket.socketpair()
closing.send(b"left")
closing.close()
shut = socket.socket()
try:
    shut.shutdown(socket.SHUT_RDWR)
except OSError:
    pass
unconnected = socket.socket(UNIX)
log = socket.socket(UNIX, socket.SOCK_DGRAM)
log.bind("/tmp/log")
teller = socket.socket(UNIX, socket.SOCK_DGRAM)
teller.connect("/tmp/log")
teller.send(b"early")
to, of = socket.socketpair(UNIX, PACKETS)
packets = [to.send(packet) for packet in (b"one", b"two")]
server, client = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "ab")
server.bind(("127.0.0.1", 7072))
client.connect(("127.0.0.1", 7072))
chosen = socket.socket()
chosen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 7, 0))
chosen.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
chosen.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7))
chosen.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 9)
chosen.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 16)
names = client.getsockname()

def of_closed():
    ends = [*by_gone, *at_gone, by_again, at_again, by_abstract, accepted]
    return [[end.getsockname(), end.getpeername()] for end in ends]

were = of_closed()

def number(level, option):
    return chosen.getsockopt(level, option)

def handler(event, context):
    both = near.recv if near.send(b"!") and far.send(b"both") else None
    other.send(b"?")
    by_abstract.send(b"to abstract")
    then = listening.accept()[0]
    then.send(b"to waiting")
    waiting.send(b"accepted")
    by_removed.send(b"removed")
    by_relative.send(b"relative")
    with connect("/tmp/relative"), connect("/tmp/again") as anew:
        again.accept()[0].send(b"anew")
        other_again = anew.recv(9).decode()
    by_gone[1].send(b"second")
    by_again.send(b"again")
    whole.send(b"back")
    teller.send(b"late")
    client.send(b"datagram")
    unconnected.connect("/tmp/served")
    alone = listening.accept()[0]
    alone.send(b"connected")
    poll = select.poll()
    poll.register(shut)
    limit = chosen.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    return {
        "named": [far.recv(6).decode(), both(9).decode(), near.getpeername(), far.getsockname(), other.getsockname()],
        "other": other.recv(9).decode(), "abstract": accepted.recv(99).decode(),
        "waiting": [then.recv(99).decode(), waiting.recv(99).decode()],
        "removed": [at_removed.recv(9).decode(), os.path.exists("/tmp/removed"), at_removed.getsockname()],
        "relative": [at_relative.recv(9).decode(), by_relative.getpeername(), at_relative.getsockname()],
        "gone": [at_gone[1].recv(9).decode(), of_closed() == were, os.path.exists("/tmp/gone")],
        "again": [at_again.recv(9).decode(), other_again],
        "half": [whole.recv(99).decode(), whole.recv(99).decode(), half.recv(9).decode()],
        "closed": [closed.recv(9).decode(), closed.recv(9).decode()],
        "shut": [poll.poll(0)[0][1] & select.POLLHUP != 0, shut.recv(1) == b""],
        "told": [log.recv(9).decode() for _ in range(2)], "packets": [of.recv(9).decode() for _ in range(2)],
        "udp": [server.recv(9).decode(), names == client.getsockname()],
        "options": [
            limit == struct.pack("qq", 7, 0), number(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000,
            list(struct.unpack("ii", chosen.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))),
            number(socket.IPPROTO_IP, socket.IP_TTL), number(socket.IPPROTO_IP, socket.IP_TOS),
        ],
        "alone": unconnected.recv(9).decode(),
    }
