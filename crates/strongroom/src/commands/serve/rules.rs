//! Access rules on the command line of `strongroom serve`, beside those of the configuration.

use clap::Args;
use strongroom_target::Config;
use strongroom_target::config::{ChapRule, PeerRule, PlainRule};

/// Who may use volumes, and who may ask for them.
#[derive(Args)]
pub(super) struct RuleArgs {
    /// A further peer: 'name=alice; key=strongroom-ed25519 …; initiators=IQN,IQN; volumes=vault'. Can be repeated.
    #[arg(long = "peer", value_name = "RULE", value_parser = parse_peer)]
    peers: Vec<PeerRule>,
    /// A further rule for plain iSCSI: 'initiators=*; volumes=scratch; chap=bob'. Can be repeated.
    #[arg(long = "plain", value_name = "RULE", value_parser = parse_plain)]
    plain: Vec<PlainRule>,
    /// A further user of CHAP: 'user=bob; secret_file=PATH; target_user=NAME; target_secret_file=PATH'. Can be repeated.
    #[arg(long = "chap", value_name = "RULE", value_parser = parse_chap)]
    chap: Vec<ChapRule>,
    /// A CHAP user who may ask for targets over plain iSCSI; without any, everybody may. Can be repeated.
    #[arg(long, value_name = "USER")]
    discovery_chap: Vec<String>,
    /// Answer SendTargets=All in normal sessions too (RFC 7143 forbids it; some test suites want it).
    #[arg(long)]
    send_targets_all: bool,
}

impl RuleArgs {
    pub(super) fn apply(&self, config: &mut Config) {
        config.peers.extend(self.peers.iter().cloned());
        config.plain.extend(self.plain.iter().cloned());
        config.chap.extend(self.chap.iter().cloned());
        config.discovery_chap.extend(self.discovery_chap.iter().cloned());
        config.send_targets_all |= self.send_targets_all;
    }
}

/// The fields of a rule, `name=value; name=value; word`.
fn rule_fields(text: &str, known: &[&str]) -> Result<Vec<(String, String)>, String> {
    let mut fields = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if !known.contains(&name.trim()) {
            return Err(format!("'{name}' is no field of this rule; it has: {}", known.join(", ")));
        }
        fields.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(fields)
}

fn names(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn parse_peer(text: &str) -> Result<PeerRule, String> {
    let mut rule = PeerRule::default();
    for (name, value) in rule_fields(text, &["name", "key", "initiators", "volumes", "receive", "read_only"])? {
        match name.as_str() {
            "name" => rule.name = value,
            "key" => rule.key = value,
            "initiators" => rule.initiators = names(&value),
            "volumes" => rule.volumes = names(&value),
            "receive" => rule.receive = names(&value),
            _ => rule.read_only = true,
        }
    }
    Ok(rule)
}

fn parse_plain(text: &str) -> Result<PlainRule, String> {
    let mut rule = PlainRule::default();
    for (name, value) in rule_fields(text, &["initiators", "volumes", "addresses", "chap", "read_only"])? {
        match name.as_str() {
            "initiators" => rule.initiators = names(&value),
            "volumes" => rule.volumes = names(&value),
            "addresses" => rule.addresses = names(&value),
            "chap" => rule.chap = names(&value),
            _ => rule.read_only = true,
        }
    }
    Ok(rule)
}

fn parse_chap(text: &str) -> Result<ChapRule, String> {
    let mut rule = ChapRule::default();
    for (name, value) in rule_fields(text, &["user", "secret_file", "target_user", "target_secret_file"])? {
        match name.as_str() {
            "user" => rule.user = value,
            "secret_file" => rule.secret_file = value.into(),
            "target_user" => rule.target_user = Some(value),
            _ => rule.target_secret_file = Some(value.into()),
        }
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_can_be_written_as_flags() {
        let rule = parse_peer("name=alice; key=strongroom-ed25519 AAAA=; initiators=iqn.a,iqn.b; volumes=*; read_only")
            .unwrap();
        assert_eq!(rule.key, "strongroom-ed25519 AAAA=");
        assert_eq!(rule.initiators, ["iqn.a", "iqn.b"]);
        assert!(rule.read_only && rule.volumes == ["*"]);
        let plain = parse_plain("initiators=*;volumes=scratch,other").unwrap();
        assert_eq!(plain.volumes, ["scratch", "other"]);
        assert!(parse_plain("initiator=*").unwrap_err().contains("initiators, volumes, addresses, chap"));
        let chap = parse_chap("user=bob; secret_file=/etc/bob; target_secret_file=/etc/us").unwrap();
        assert_eq!((chap.user.as_str(), chap.target_user), ("bob", None));
        assert_eq!(chap.target_secret_file, Some("/etc/us".into()));
    }
}
