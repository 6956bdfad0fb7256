//! Proves that stock initiators use a plain volume: libiscsi's tools and qemu's block driver, and that they and we see the same
//! bytes. Debian packages: libiscsi-bin, qemu-utils, qemu-block-extra, fio.
//!
//! A missing tool is a failure, unless STRONGROOM_SKIP_INTEROP=1 is set; then each skipped test says so on standard error.

use std::io::Write as _;
use std::process::{Command, Output};

use strongroom_target::VolumeSpec;

use crate::support::{self, BLOCK, Host, MIB, pattern, target_name};

/// Whether the tools are there. Loud if not.
fn have(tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing: Vec<_> =
        tools.iter().filter(|tool| !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())).collect();
    if missing.is_empty() {
        return true;
    }
    let skip = std::env::var_os("STRONGROOM_SKIP_INTEROP").is_some_and(|value| value == "1");
    assert!(
        skip,
        "missing {missing:?}: install libiscsi-bin, qemu-utils, qemu-block-extra and fio, or set STRONGROOM_SKIP_INTEROP=1"
    );
    // Straight to the terminal: the test harness swallows what a passing test prints.
    let _ = writeln!(std::io::stderr(), "\n*** SKIPPED interop: missing {missing:?} ***");
    false
}

fn run(tool: &str, arguments: &[&str]) -> Output {
    Command::new(tool).args(arguments).output().unwrap_or_else(|error| panic!("{tool}: {error}"))
}

#[track_caller]
fn succeed(tool: &str, arguments: &[&str]) -> String {
    let output = run(tool, arguments);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{tool} {arguments:?} failed ({}):\n{text}", output.status);
    text
}

fn url(host: &Host, volume: &str) -> String {
    format!("iscsi://{}/{}/0", host.address(), target_name(volume))
}

#[test]
fn libiscsi_tools_discover_and_inquire() {
    if !have(&["iscsi-ls", "iscsi-inq", "iscsi-readcapacity16"]) {
        return;
    }
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB), VolumeSpec::sealed("vault", 64 * MIB)]);
    let listed = succeed("iscsi-ls", &["-s", &format!("iscsi://{}", host.address())]);
    assert!(listed.contains(&target_name("disk")) && listed.contains("Lun:0"), "{listed}");
    assert!(!listed.contains("vault"), "a sealed volume is not shown to plain discovery: {listed}");
    let inquiry = succeed("iscsi-inq", &[&url(&host, "disk")]);
    assert!(inquiry.contains("STRNGRM") && inquiry.contains("PLAIN VOLUME"), "{inquiry}");
    for page in ["0x00", "0x80", "0x83", "0xb0", "0xb1", "0xb2"] {
        let page_code = u8::from_str_radix(&page[2..], 16).unwrap().to_string();
        let text = succeed("iscsi-inq", &["-e", "1", "-c", &page_code, &url(&host, "disk")]);
        assert!(!text.is_empty(), "page {page}");
    }
    let capacity = succeed("iscsi-readcapacity16", &[&url(&host, "disk")]);
    assert!(capacity.contains("67108864") && capacity.contains("4096"), "{capacity}");
    let refused = run("iscsi-inq", &[&url(&host, "vault")]);
    assert!(!refused.status.success(), "a sealed volume refuses plain sessions");
    let text = String::from_utf8_lossy(&refused.stderr).to_lowercase();
    assert!(text.contains("authoriz") || text.contains("login"), "the tool is told why: {text}");
}

#[test]
fn qemu_writes_and_reads_back_and_we_see_the_same_bytes() {
    if !have(&["qemu-img", "qemu-io"]) {
        return;
    }
    for block_size in [512, 4096] {
        let spec = VolumeSpec { block_size, ..VolumeSpec::plain("disk", 64 * MIB) };
        let host = Host::start(&[spec]);
        let url = url(&host, "disk");
        // Data with holes and runs, so that qemu writes, writes zeros and unmaps.
        let image = host.dir.path().join("image.raw");
        let mut content = Vec::new();
        for seed in 0..16u8 {
            content.extend(pattern(seed, 512));
            content.resize(content.len() + 2 * MIB as usize, 0);
        }
        std::fs::write(&image, &content).unwrap();
        let image = image.to_str().unwrap();
        succeed("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", image, &url]);
        let compared = succeed("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &url]);
        assert!(compared.contains("identical"), "{compared}");
        let pattern_io = succeed(
            "qemu-io",
            &[
                "-f",
                "raw",
                "-c",
                "write -P 0xa5 3M 1M",
                "-c",
                "flush",
                "-c",
                "read -P 0xa5 3M 1M",
                "-c",
                "write -f -P 0x5a 3145728 512",
                "-c",
                "read -P 0x5a 3145728 512",
                "-c",
                "discard 8M 2M",
                "-c",
                "write -z 20M 1M",
                "-c",
                "read -P 0 20M 1M",
                &url,
            ],
        );
        assert!(!pattern_io.contains("failed") && !pattern_io.contains("error"), "{pattern_io}");
        let back = host.dir.path().join("back.raw");
        succeed("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, back.to_str().unwrap()]);
        content[3 * MIB as usize..4 * MIB as usize].fill(0xa5);
        content[3 * MIB as usize..3 * MIB as usize + 512].fill(0x5a);
        content[8 * MIB as usize..10 * MIB as usize].fill(0);
        content[20 * MIB as usize..21 * MIB as usize].fill(0);
        let read_back = std::fs::read(&back).unwrap();
        let differs = read_back.iter().zip(&content).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "first difference at byte {differs:?}, block size {block_size}");
        assert!(read_back[content.len()..].iter().all(|byte| *byte == 0));
        if block_size as usize == BLOCK {
            let ours = host.plain("disk").read(0, 2048);
            assert_eq!(ours, content[..2048 * BLOCK], "our initiator sees the same bytes");
        }
    }
}

#[test]
fn what_we_write_qemu_reads() {
    if !have(&["qemu-img"]) {
        return;
    }
    let host = Host::start(&[VolumeSpec::plain("disk", 16 * MIB)]);
    let mut initiator = host.plain("disk");
    let data = pattern(77, 1000);
    initiator.write(50, &data);
    initiator.log_out();
    let out = host.dir.path().join("out.raw");
    succeed("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url(&host, "disk"), out.to_str().unwrap()]);
    let read = std::fs::read(&out).unwrap();
    assert_eq!(read.len() as u64, 16 * MIB);
    assert_eq!(read[50 * BLOCK..1050 * BLOCK], data);
}

/// qemu 7.2 once fell over a granularity that we reported: large reads in front of any question for allocation.
#[test]
fn qemu_reads_at_depth_without_asking_for_allocation_first() {
    if !have(&["qemu-img"]) {
        return;
    }
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    for arguments in [["-s", "65536"], ["-s", "4096"]] {
        let url = url(&host, "disk");
        let common = ["bench", "-f", "raw", "-t", "none", "-d", "16", "-c", "500", arguments[0], arguments[1]];
        succeed("qemu-img", &[&common[..], &["-w", &url]].concat());
        succeed("qemu-img", &[&common[..], &[&url]].concat());
    }
}

/// fio writes at random, at depth, and checks every block by its CRC, through qemu's block driver (Debian's fio has no libiscsi engine).
#[test]
fn fio_verifies_what_it_writes() {
    if !have(&["fio", "qemu-nbd"]) {
        return;
    }
    let host = Host::start(&[VolumeSpec::plain("disk", 64 * MIB)]);
    let socket = host.dir.path().join("nbd");
    let socket = socket.to_str().unwrap();
    let mut bridge = Command::new("qemu-nbd")
        .args(["--format", "raw", "--persistent", "--cache", "none", "--socket", socket, &url(&host, "disk")])
        .spawn()
        .unwrap();
    // The socket is there before somebody listens.
    support::eventually("qemu-nbd listens", || std::os::unix::net::UnixStream::connect(socket).is_ok());
    let uri = format!("--uri=nbd+unix:///?socket={socket}");
    let job =
        ["--name=verify", "--ioengine=nbd", &uri, "--rw=randrw", "--bsrange=4k-128k", "--iodepth=16", "--size=48m"];
    let checks = [
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_backlog=64",
        "--verify_state_save=0",
        "--randrepeat=1",
        "--output-format=json",
    ];
    let output = run("fio", &[&job[..], &checks].concat());
    let _ = bridge.kill();
    let _ = bridge.wait();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("\"error\" : 0"), "{text}");
}
