//! Proves that the Wireshark dissector shows the clear part of ECL's packets as the golden vectors of `docs/ecl.md` have it: a capture is made of
//! them and read by tshark.

use std::path::{Path, PathBuf};
use std::process::Command;

const PORT: u16 = 3260;
/// IPv4 packets without a link layer (LINKTYPE_IPV4).
const LINK_TYPE: u32 = 228;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The packet of a golden vector, with its quantum if it has one.
fn vector(name: &str) -> Vec<u8> {
    let document = std::fs::read_to_string(root().join("docs/ecl.md")).unwrap();
    let start = format!("| {name} | `");
    let row =
        document.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("no vector '{name}'"));
    let hex = row.trim_end_matches("` |");
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let mut packet: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
    if packet[0] & 0x0f == 1 {
        packet.extend([0xa5; 512]);
    }
    packet
}

/// An IPv4 packet with a datagram to the target's port.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let udp_bytes = (8 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp_bytes).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 2]);
    packet.extend(40_000_u16.to_be_bytes());
    packet.extend(PORT.to_be_bytes());
    packet.extend(udp_bytes.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4_u32.to_le_bytes());
    file.extend([2_u16, 4].map(u16::to_le_bytes).concat());
    file.extend([0_u32, 0, 65535, LINK_TYPE].map(u32::to_le_bytes).concat());
    for (second, packet) in packets.iter().map(|payload| datagram(payload)).enumerate() {
        let len = packet.len() as u32;
        file.extend([second as u32, 0, len, len].map(u32::to_le_bytes).concat());
        file.extend(packet);
    }
    file
}

/// The values of `fields`, a line for each packet.
fn dissected(packets: &[Vec<u8>], more: &[&str], fields: &[&str]) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, capture(packets)).unwrap();
    let script = format!("lua_script:{}", root().join("contrib/wireshark/strongroom-ecl.lua").display());
    let mut tshark = Command::new("tshark");
    tshark.args(["-X", &script, "-r"]).arg(file.path()).args(["-T", "fields", "-E", "separator=/s"]).args(more);
    tshark.args(fields.iter().flat_map(|field| ["-e", *field]));
    let output = tshark.output().expect("tshark is there: scripts/deps.sh installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    // Later versions write words for what is true or false.
    let text = String::from_utf8(output.stdout).unwrap().replace("True", "1").replace("False", "0");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_dissector_shows_what_is_in_the_clear() {
    let names = [
        "S2-5 COMMAND with quantum 0, packet 2^32 + 2",
        "S2-5 ACKNOWLEDGE of 7 to 9 and 4, from the target, packet 1",
        "S2-5 RESPONSE, packet 2",
    ];
    let fields = [
        "ecl.version",
        "ecl.type",
        "ecl.protected_bytes",
        "ecl.connection_id",
        "ecl.packet_number",
        "ecl.sink",
        "ecl.sink.generation",
        "ecl.sink.slot",
    ];
    let lines = dissected(&names.map(vector), &[], &fields);
    assert_eq!(
        lines,
        [
            "1 1 120 0x0a0b0c0d 2 0x00009003 9 3",
            "1 2 101 0x0a0b0c0d 1 0xffffffff  ",
            "1 2 75 0x0a0b0c0d 2 0x00009003 9 3",
        ]
    );
    // Only a capture of S1-2 has more to show.
    let fields = [
        "ecl.operation",
        "ecl.task",
        "ecl.quantum",
        "ecl.flags.writes",
        "ecl.flags.sealed",
        "ecl.order_epoch",
        "ecl.length",
    ];
    let packet = [vector("S1-2 COMMAND with quantum 0, packet 2^32 + 2")];
    let line = dissected(&packet, &["-o", "ecl.clear_header:TRUE"], &fields);
    let command = &packet[0];
    let number = |at: usize| u32::from_be_bytes(command[at..at + 4].try_into().unwrap());
    let flags = command[25];
    let expected = format!(
        "{} {} {} {} {} {} {}",
        command[24],
        number(16),
        number(20),
        flags >> 4 & 1,
        flags >> 2 & 1,
        number(28),
        number(44)
    );
    assert_eq!(line, [expected]);
}

#[test]
fn what_is_no_packet_is_marked() {
    let mut other_version = vector("S2-5 RESPONSE, packet 2");
    other_version[0] = 0x22;
    let mut cut = vector("S2-5 COMMAND with quantum 0, packet 2^32 + 2");
    cut.truncate(120);
    let lines =
        dissected(&[other_version, cut, vec![0x11; 20]], &[], &["_ws.col.Protocol", "ecl.malformed", "ecl.version"]);
    assert_eq!(lines, ["ECL 1 "; 3]);
}
