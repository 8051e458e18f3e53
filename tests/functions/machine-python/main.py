# Answers with the size of the machine that programs take this to be, when it was loaded and now.
import glob, os, subprocess


def number(path):
    with open(path) as file:
        return int(file.read())


def field(path, name):
    with open(path) as file:
        return [line.split()[1] for line in file if line.startswith(name)]


def limit():
    """What the control groups say, by the version that /proc/self/cgroup has, as runtimes look for it."""
    with open("/proc/self/cgroup") as file:
        groups = dict(line.strip().split(":")[1:] for line in file)
    named = {name: (controllers, path) for controllers, path in groups.items() for name in controllers.split(",")}
    if "memory" not in named:
        at = "/sys/fs/cgroup" + groups[""]
        quota, period = open(at + "/cpu.max").read().split()
        return number(at + "/memory.max"), int(quota) / int(period), number(at + "/memory.current")
    memory, cpu = ("/sys/fs/cgroup/" + name + named[name][1] for name in ("memory", "cpu"))
    cpus = number(cpu + "/cpu.cfs_quota_us") / number(cpu + "/cpu.cfs_period_us")
    return number(memory + "/memory.limit_in_bytes"), cpus, number(memory + "/memory.usage_in_bytes")


def size():
    memory, cpus, used = limit()
    return {
        "memory": int(field("/proc/meminfo", "MemTotal:")[0]) * 1024,
        "available": int(field("/proc/meminfo", "MemAvailable:")[0]) * 1024,
        "limit": memory,
        "used": used,
        "cpus": cpus,
        "processors": os.cpu_count(),
        "configured": os.sysconf("SC_NPROCESSORS_CONF"),
        "cpuinfo": len(field("/proc/cpuinfo", "processor")),
        "stat": len([line for line in open("/proc/stat") if line.startswith("cpu")]) - 1,
        "nproc": int(subprocess.run(["nproc"], capture_output=True, check=True).stdout),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
    }


def booted():
    """When this process began, after the start of a machine that began then."""
    ticks = int(open("/proc/self/stat").read().rsplit(")")[-1].split()[19])
    return int(field("/proc/stat", "btime")[0]) + ticks / os.sysconf("SC_CLK_TCK")


began = size()
held = []


def handler(event, context):
    what = event["rawPath"].strip("/")
    if what.startswith("hold"):
        held.append(open("/" + what.removeprefix("hold/")))
    if what == "write":
        tried = glob.glob("/sys/**", recursive=True) + ["/proc/meminfo", "/proc/cpuinfo", "/proc/stat", "/etc/hosts"]
        return [path for path in tried if not os.path.islink(path) and os.access(path, os.W_OK)]
    return {"began": began, "now": size(), "booted": booted()}
