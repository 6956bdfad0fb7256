//! Proves that our initiator uses other people's targets: what `strongroom copy` writes to tgt and to istgt lies in their files byte for byte,
//! and comes back. Debian packages: tgt, istgt. A missing one is a failure, unless STRONGROOM_SKIP_INTEROP=1 is set; then that is said.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::stage::{eventually, noise, run};
use tempfile::TempDir;

const TARGET: &str = "iqn.2026-11.test:foreign";
const BYTES: usize = 32 << 20;

/// A daemon; killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    #[track_caller]
    fn start(command: &mut Command, log: &Path, address: SocketAddr) -> Daemon {
        let file = fs::File::create(log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        let mut daemon = Daemon(child);
        eventually("the daemon listens", || {
            let ended = daemon.0.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {}", fs::read_to_string(log).unwrap_or_default());
            TcpStream::connect(address).is_ok()
        });
        daemon
    }
}

/// The program, wherever the administrator's programs are. Loud if it is missing.
fn program(name: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    if found.is_none() {
        let skip = std::env::var_os("STRONGROOM_SKIP_INTEROP").is_some_and(|value| value == "1");
        assert!(skip, "{name} is missing: install the Debian packages tgt and istgt, or set STRONGROOM_SKIP_INTEROP=1");
        let _ = writeln!(std::io::stderr(), "\n*** SKIPPED interop: no {name} ***");
    }
    found.map(|file| file.to_str().expect("paths of programs are UTF-8").to_owned())
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Copies noise with holes in, looks into the target's own file, and copies it back.
fn there_and_back(dir: &TempDir, backing: &Path, url: &str) {
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let mut contents = noise(11, BYTES);
    contents[4 << 20..20 << 20].fill(0);
    fs::write(path("in"), &contents).unwrap();
    run(&["copy", &path("in"), url, "--verify", "--sha256"]).ok();
    let stored = fs::read(backing).unwrap();
    let differs = stored.iter().zip(&contents).position(|(stored, sent)| stored != sent);
    assert_eq!((stored.len(), differs), (BYTES, None), "the target's file holds something else");
    run(&["copy", url, &path("out")]).ok();
    assert!(fs::read(path("out")).unwrap() == contents);
    // Several connections per session, or as many as it takes.
    run(&["copy", url, &path("out-by-three"), "--connections", "3"]).ok();
    assert!(fs::read(path("out-by-three")).unwrap() == contents);
    contents.rotate_left(4096);
    fs::write(path("in"), &contents).unwrap();
    run(&["copy", &path("in"), url, "--verify", "--connections", "3"]).ok();
    assert!(fs::read(backing).unwrap() == contents);
}

#[test]
fn tgt_keeps_what_we_write() {
    let (Some(tgtd), Some(tgtadm)) = (program("tgtd"), program("tgtadm")) else { return };
    let dir = TempDir::new().unwrap();
    let (address, backing, socket) = (free_address(), dir.path().join("disk"), dir.path().join("ipc"));
    fs::File::create(&backing).unwrap().set_len(BYTES as u64).unwrap();
    let mut command = Command::new(tgtd);
    command.args(["-f", "-C", "7", "--iscsi", &format!("portal={address}")]).env("TGT_IPC_SOCKET", &socket);
    let _daemon = Daemon::start(&mut command, &dir.path().join("log"), address);
    eventually("tgt's management socket is there", || socket.with_extension("7").exists());
    let admin = |arguments: &str| {
        let mut command = Command::new(&tgtadm);
        command.args(["-C", "7", "--lld", "iscsi"]).env("TGT_IPC_SOCKET", &socket).args(arguments.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    admin(&format!("--op new --mode target --tid 1 -T {TARGET}"));
    let disk = backing.to_str().unwrap();
    admin(&format!("--op new --mode logicalunit --tid 1 --lun 1 -b {disk} --bstype rdwr --blocksize 4096"));
    admin("--op bind --mode target --tid 1 -I ALL");
    let url = format!("iscsi://{address}/{TARGET}/1");
    there_and_back(&dir, &backing, &url);
    // With CRC32C, and the levels that mend damage, if the target goes along.
    let out = dir.path().join("out-digests").to_str().unwrap().to_owned();
    let copy = |more: &[&str]| run(&[&["copy", &url, &out, "--overwrite", "--timeout", "2s"], more].concat());
    copy(&["--digests", "prefer", "--recovery-level", "2"]).ok();
    assert!(fs::read(&out).unwrap() == fs::read(&backing).unwrap());
    // Only for who has a secret. (CHAP goes no further with tgt: it takes the number of SHA-256, 7, for SHA-1.)
    let user = Command::new(&tgtadm)
        .args(["-C", "7", "--lld", "iscsi", "--op", "new", "--mode", "account", "--user", "alice"])
        .args(["--password", "tgt's own secret"])
        .env("TGT_IPC_SOCKET", &socket)
        .status();
    assert!(user.unwrap().success());
    admin("--op bind --mode account --tid 1 --user alice");
    copy(&[]).failed(&["authentication failed"]);
}

#[test]
fn istgt_keeps_what_we_write() {
    let Some(istgt) = program("istgt") else { return };
    let dir = TempDir::new().unwrap();
    let (address, control, backing) = (free_address(), free_address(), dir.path().join("disk"));
    fs::File::create(&backing).unwrap().set_len(BYTES as u64).unwrap();
    let (base, name) = TARGET.split_once(':').unwrap();
    let (here, disk) = (dir.path().display(), backing.display());
    let configuration = format!(
        "[Global]\n NodeBase \"{base}\"\n PidFile {here}/pid\n AuthFile {here}/auth\n MediaDirectory {here}\n LogFacility \"local7\"\n \
         Timeout 30\n NopInInterval 20\n DiscoveryAuthMethod None\n MaxSessions 16\n MaxConnections 4\n MaxR2T 32\n MaxOutstandingR2T 16\n \
         FirstBurstLength 262144\n MaxBurstLength 262144\n MaxRecvDataSegmentLength 262144\n InitialR2T Yes\n ImmediateData Yes\n \
         DataPDUInOrder Yes\n DataSequenceInOrder Yes\n ErrorRecoveryLevel 0\n\
         [UnitControl]\n AuthMethod None\n AuthGroup None\n Portal UC1 {control}\n Netmask 127.0.0.1\n\
         [PortalGroup1]\n Portal DA1 {address}\n[InitiatorGroup1]\n InitiatorName \"ALL\"\n Netmask ALL\n\
         [LogicalUnit1]\n TargetName {name}\n Mapping PortalGroup1 InitiatorGroup1\n AuthMethod None\n AuthGroup None\n UseDigest Auto\n \
         UnitType Disk\n QueueDepth 64\n BlockLength 4096\n LUN0 Storage {disk} Auto\n"
    );
    for (name, text) in [("auth", ""), ("conf", configuration.as_str())] {
        fs::write(dir.path().join(name), text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(dir.path().join(name), mode).unwrap();
    }
    let mut command = Command::new(istgt);
    command.arg("-D").arg("-c").arg(dir.path().join("conf"));
    let _daemon = Daemon::start(&mut command, &dir.path().join("log"), address);
    there_and_back(&dir, &backing, &format!("iscsi://{address}/{TARGET}/0"));
}
