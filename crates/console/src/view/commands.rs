//! Commands for people to copy into a shell. Names in them come from elsewhere, and must not become part of the command.

use strongroom_target::admin::SealingInfo;

/// The port that a URL need not name.
const DEFAULT_PORT: u16 = 3260;

/// A word as a shell takes it: quoted, unless nothing in it means anything to one.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.:/@[]%+=,".contains(character);
    // Control characters are not for terminals, not even quoted.
    let word: String = strongroom_block::foreign(word).to_string();
    if !word.is_empty() && word.chars().all(is_plain) && !word.contains('[') && !word.starts_with('-') {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The URL of a volume, as an initiator names it.
pub(crate) fn url(addresses: &[std::net::SocketAddr], volume: &str) -> String {
    let host = addresses.iter().find(|address| !address.ip().is_unspecified() && !address.ip().is_loopback());
    let host = host.or_else(|| addresses.iter().find(|address| !address.ip().is_unspecified()));
    let port = addresses.first().map_or(DEFAULT_PORT, std::net::SocketAddr::port);
    let host = host.map_or_else(
        || "THIS-MACHINE".to_owned(),
        |address| match address.ip() {
            std::net::IpAddr::V4(ip) => ip.to_string(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        },
    );
    match port {
        DEFAULT_PORT => format!("strongroom://{host}/{volume}"),
        port => format!("strongroom://{host}:{port}/{volume}"),
    }
}

/// Where an initiator has the volume's key.
fn key_option(sealing: &SealingInfo) -> &'static str {
    match sealing.custody.as_str() {
        "keyfile" => " --key-file KEY-FILE",
        "keyserver" => " --key-server KEY-SERVER",
        _ => "",
    }
}

/// Brings back the newest version of some blocks that still opens.
pub(crate) fn recover(url: &str, first: u64, blocks: u64, sealing: &SealingInfo) -> String {
    let count = if blocks > 1 { format!(" --count {blocks}") } else { String::new() };
    format!("strongroom volume recover {} --lba {first}{count}{} --yes", quoted(url), key_option(sealing))
}

/// Reads every block and opens it, where its key is.
pub(crate) fn verify(url: &str, sealing: &SealingInfo) -> String {
    format!("strongroom volume verify {}{}", quoted(url), key_option(sealing))
}

/// Blocks that follow each other, as first block and length.
pub(crate) fn runs(blocks: &[u64]) -> Vec<(u64, u64)> {
    let mut sorted = blocks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in sorted {
        match runs.last_mut() {
            Some((first, count)) if first.checked_add(*count) == Some(block) => *count += 1,
            _ => runs.push((block, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_become_part_of_a_command() {
        assert_eq!(quoted("strongroom://storage/vault"), "strongroom://storage/vault");
        assert_eq!(quoted("a; rm -rf ~"), "'a; rm -rf ~'");
        assert_eq!(quoted("a'$(id)'"), r"'a'\''$(id)'\'''");
        assert_eq!(quoted("--yes"), "'--yes'");
        assert_eq!(quoted("a\n\u{1b}[2J"), "'a\\u{a}\\u{1b}[2J'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn urls_name_an_address_that_others_reach() {
        let url = |addresses: &[&str]| {
            url(&addresses.iter().map(|address| address.parse().unwrap()).collect::<Vec<_>>(), "vault")
        };
        assert_eq!(url(&["127.0.0.1:3260", "192.0.2.1:3260"]), "strongroom://192.0.2.1/vault");
        assert_eq!(url(&["127.0.0.1:10001"]), "strongroom://127.0.0.1:10001/vault");
        assert_eq!(url(&["[::]:3260"]), "strongroom://THIS-MACHINE/vault");
        assert_eq!(url(&["[2001:db8::1]:3261"]), "strongroom://[2001:db8::1]:3261/vault");
        assert_eq!(url(&[]), "strongroom://THIS-MACHINE/vault");
    }

    #[test]
    fn blocks_in_a_row_are_one_command() {
        assert_eq!(runs(&[7, 3, 4, 5, 9, 3]), [(3, 3), (7, 1), (9, 1)]);
        assert_eq!(runs(&[u64::MAX, u64::MAX - 1]), [(u64::MAX - 1, 2)]);
        assert_eq!(runs(&[]), []);
    }
}
