//! Packages and folders that mean harm.

use super::*;

#[tokio::test]
async fn a_hostile_folder_and_a_bomb_have_codes_of_their_own() {
    let Some(shop) = BuildFixture::open() else { return };
    let error = shop
        .build(PYTHON, Tar::default().file("../evil", ""))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig);
    let tar = (0..100_001).fold(Tar::default(), |t, i| t.file(&format!("{i}"), ""));
    assert_eq!(shop.build(PYTHON, tar).await.unwrap_err().code(), ErrorCode::TooLarge);
}

#[tokio::test]
async fn a_hostile_package_runs_and_reaches_nothing() {
    let Some(shop) = BuildFixture::open() else { return };
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "secret").unwrap();
    fs::set_permissions(secret.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let elsewhere = BuildFixture::open().unwrap();
    let other = BuildDir::make(&shop.work_dir()).unwrap();
    fs::write(other.app().join("other"), "secret").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let code = format!(
        r#"
import ctypes, os, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, attempt):
    nonlocal said
    try: said += f'{{name}}: done {{attempt()}}\n'
    except OSError as e: said += f'{{name}}: refused {{e.errno}}\n'
def call(name, *arguments):
    def attempt():
        if getattr(libc, name)(*arguments) != 0: raise OSError(ctypes.get_errno(), name)
    tried(name, attempt)
def proxied(target):
    s = socket.create_connection(('127.0.0.1', 3128), 5)
    s.sendall(f'CONNECT {{target}} HTTP/1.1\r\n\r\n'.encode())
    status = s.recv(100).split()[1]
    if status != b'200': raise OSError(int(status), target)
tried('process', lambda: subprocess.run(['/bin/true'], check=True).returncode)
tried('host file', lambda: open('{secret}').read())
tried('shadow', lambda: open('/etc/shadow').read())
tried('other build', lambda: open('{other}/app/other').read())
tried('root', lambda: open('/usr/lib/x', 'w'))
tried('etc', lambda: open('/etc/x', 'w'))
tried('above', lambda: os.symlink('/etc', '/run/x'))
tried('host service', lambda: socket.create_connection(('127.0.0.1', {port}), 5))
tried('metadata', lambda: socket.create_connection(('169.254.169.254', 80), 5))
tried('world', lambda: socket.create_connection(('1.1.1.1', 53), 5))
tried('proxy to the host', lambda: proxied('127.0.0.1:{port}'))
tried('proxy to metadata', lambda: proxied('169.254.169.254:80'))
tried('proxy to others', lambda: proxied('example.org:443'))
tried('proxy to another port', lambda: proxied('pypi.org:22'))
tried('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
call('unshare', 0x10000000)
call('mount', b'x', b'/tmp', b'tmpfs', 0, None)
call('setuid', 0)
call('ptrace', 16, 1, 0, 0)
status = {{l.split()[0]: l.split()[1] for l in open('/proc/self/status') if len(l.split()) > 1}}
said += 'caps ' + ' '.join(status[k].strip('0') for k in ('CapInh:', 'CapPrm:', 'CapEff:', 'CapBnd:', 'CapAmb:')) + '\n'
said += f"rights {{status['NoNewPrivs:']}} {{status['Seccomp:']}} {{os.getuid()}} {{os.getgroups()}}\n"
said += f"processes {{max(int(p) for p in os.listdir('/proc') if p.isdigit()) < 100}}\n"
said += f"proc {{[p for p in os.listdir('/proc') if not p.isdigit()]}}\n"
said += f"interfaces {{socket.if_nameindex()}}\n"
said += 'tmp ' + ' '.join(os.listdir('/tmp')) + '\n'
said += 'environment ' + ' '.join(os.environ)
# Not with pip's pipes, whose end pip waits for.
subprocess.Popen(['/bin/sleep', '300'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"#,
        secret = secret.path().display(),
        other = other.path.display(),
    );
    let tar = python_app()
        .file(
            "requirements.txt",
            "--no-index
./demo-1.0.tar.gz
",
        )
        .entry("demo-1.0.tar.gz", EntryType::Regular, "", 0o644, &source_archive(&code));
    let began = Instant::now();
    let layer = elsewhere.build(PYTHON, tar).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(200),
        "what it left running was waited for"
    );
    let said = content(&layer, ".rekindle/python/demo.txt").unwrap();
    assert!(said.contains("process: done 0"), "{said}");
    let done: Vec<_> = said
        .lines()
        .filter(|l| l.contains(": done") && !l.starts_with("process"))
        .collect();
    assert!(
        done.is_empty(),
        "{done:?}
{said}"
    );
    for line in [
        "host file: refused 2",
        "root: refused 30",
        "proxy to the host: refused 403",
        "proxy to others: refused 403",
    ] {
        assert!(
            said.contains(line),
            "{line} in
{said}"
        );
    }
    assert!(
        said.contains(
            "caps     
"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "rights 1 2 100000 []
"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "processes True
"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "interfaces [(1, 'lo')]
"
        ),
        "{said}"
    );
    assert!(!said.contains("REKINDLE_ORDER"), "{said}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "something connected to the host");
}
