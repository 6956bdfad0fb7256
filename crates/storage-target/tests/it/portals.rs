//! Proves that a target is reached through several portal groups, over IPv4 and IPv6: each login is told its group, a session and its nexus
//! belong to one, every answer of SCSI about ports agrees with the tags, and discovery tells every way.

use std::net::SocketAddr;

use strongroom_block::Buffer;
use strongroom_iscsi::initiator::{Command, Config as SessionConfig, Event, WriteSource};
use strongroom_iscsi::target::TargetEntry;
use strongroom_scsi::{Sense, cdb};
use strongroom_target::VolumeSpec;
use strongroom_target::config::PortalGroupRule;

use crate::support::{ALICE, Host, Initiator, LUN, discovery, normal, pattern, target_name};

const TAG: u16 = 0x107;

/// Group 1 at one IPv4 address; group 107h at an IPv4 and an IPv6 address.
fn host() -> Host {
    Host::start_with(&[VolumeSpec::plain("disk", 16 << 20), VolumeSpec::plain("other", 16 << 20)], |config| {
        config.management_url = Some("https://storage.example/".into());
        config.portal_groups.push(PortalGroupRule {
            tag: TAG,
            listen: vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()],
            advertise: Vec::new(),
        });
    })
}

fn portals(host: &Host) -> [SocketAddr; 3] {
    host.handle().local_addresses().try_into().unwrap()
}

/// Logs in through a portal; with the tag that the target declares.
fn log_in_at(host: &Host, portal: SocketAddr, config: SessionConfig) -> (Initiator, Option<u16>) {
    let mut initiator = Initiator::connect_at(host, portal, None, config);
    let tag = initiator.pump_until(|initiator| {
        initiator.events.drain(..).find_map(|event| match event {
            Event::LoggedIn { portal_group_tag, .. } => Some(portal_group_tag),
            _ => None,
        })
    });
    (initiator, tag)
}

fn use_at(host: &Host, portal: usize) -> Initiator {
    let (mut initiator, tag) = log_in_at(host, portals(host)[portal], normal(ALICE, "disk"));
    assert_eq!(tag, Some([1, TAG, TAG][portal]));
    initiator.run(Command::without_data(LUN, cdb::test_unit_ready())).sense();
    initiator
}

fn ask(session: &mut Initiator, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    let mut whole = [0; 16];
    whole[..cdb.len()].copy_from_slice(cdb);
    let outcome = session.run(Command::read(LUN, whole, 252));
    if outcome.status == 0 { Ok(outcome.data) } else { Err(outcome.sense()) }
}

fn register(session: &mut Initiator, key: u64, all_target_ports: bool) -> u8 {
    let mut cdb = [0; 16];
    cdb[..9].copy_from_slice(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24]);
    let list = [&[0; 8][..], &key.to_be_bytes(), &[0, 0, 0, 0, u8::from(all_target_ports) << 2, 0, 0, 0]].concat();
    session.run(Command::write(LUN, cdb, WriteSource::plain(Buffer::copy_from(&list)))).status
}

fn keys(session: &mut Initiator) -> usize {
    ask(session, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 252, 0]).unwrap()[8..].len() / 8
}

#[test]
fn each_group_is_a_port_of_its_own() {
    let host = host();
    // The same initiator port through two groups is two nexuses; through the same group again it is a reinstatement.
    let (mut first, mut second) = (use_at(&host, 0), use_at(&host, 2));
    first.write(0, &pattern(1, 1));
    assert_eq!(second.read(0, 1), pattern(1, 1));
    for (session, tag) in [(&mut first, 1), (&mut second, TAG)] {
        let page = ask(session, &[0x12, 1, 0x83, 0, 252, 0]).unwrap();
        let [high, low] = tag.to_be_bytes();
        let holds = |bytes: &[u8]| page.windows(bytes.len()).any(|window| window == bytes);
        assert!(holds(&[0x51, 0x94, 0, 4, 0, 0, high, low]), "relative target port {tag}");
        assert!(holds(&[0x51, 0x95, 0, 4, 0, 0, 0, 1]), "target port group 1");
        assert!(holds(format!("{},t,0x{tag:04x}\0", target_name("disk")).as_bytes()));
        // REPORT TARGET PORT GROUPS: one group with both ports, which page 88h names.
        let groups = ask(session, &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 252, 0, 0]).unwrap();
        assert_eq!(groups[4..], [0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 1, 7]);
        let ports = ask(session, &[0x12, 1, 0x88, 0, 252, 0]).unwrap();
        for tag in ["0x0001", "0x0107"] {
            assert!(String::from_utf8_lossy(&ports).contains(&format!("{},t,{tag}", target_name("disk"))));
        }
    }
    let mut third = use_at(&host, 1);
    second.wait_for_end();
    first.read(0, 1);
    third.read(0, 1);
}

#[test]
fn registrations_belong_to_a_port_or_to_all() {
    let host = host();
    let (mut first, mut second) = (use_at(&host, 0), use_at(&host, 1));
    assert_eq!(register(&mut first, 7, false), 0);
    assert_eq!(keys(&mut first), 1);
    assert_eq!(register(&mut second, 9, true), 0, "it is not registered through this port");
    assert_eq!(keys(&mut first), 2);
    let full = ask(&mut first, &[0x5e, 3, 0, 0, 0, 0, 0, 0, 252, 0]).unwrap();
    assert_eq!((full[8 + 7], full[8 + 18..8 + 20].to_vec()), (9, vec![0, 1]), "through all ports under the new key");
}

#[test]
fn discovery_tells_every_way() {
    let host = host();
    let at = portals(&host);
    let told = |targets: &[TargetEntry], volume: &str| {
        targets.iter().find(|target| target.name == target_name(volume)).map(|target| target.addresses.clone())
    };
    for reached in 0..3 {
        let (mut session, tag) = log_in_at(&host, at[reached], discovery(ALICE));
        assert_eq!(tag, None, "a discovery session has none");
        let targets = session.send_targets();
        let mut ways = told(&targets, "disk").unwrap();
        let all = [format!("{},1", at[0]), format!("{},{TAG}", at[1]), format!("{},{TAG}", at[2])];
        assert_eq!(ways[0], all[reached], "the one that works comes first");
        ways.sort();
        let mut all = all.to_vec();
        all.sort();
        assert_eq!(ways, all);
    }
}

/// RFC 7143 Appendix C: in a normal session SendTargets is for the session's own target, unless the keeper of the target wants otherwise.
#[test]
fn a_normal_session_learns_of_other_targets_by_the_switch_alone() {
    for allowed in [false, true] {
        let volumes = [VolumeSpec::plain("disk", 16 << 20), VolumeSpec::plain("other", 16 << 20)];
        let host = Host::start_with(&volumes, |config| config.send_targets_all = allowed);
        let mut session = host.plain("disk");
        let names: Vec<String> = session.send_targets().into_iter().map(|target| target.name).collect();
        let wanted = [target_name("disk"), target_name("other")];
        assert_eq!(names, if allowed { &wanted[..] } else { &[] });
        session.read(0, 1);
    }
}

#[test]
fn a_management_address_is_told_if_there_is_one() {
    let host = host();
    let mut session = host.plain("disk");
    let page = ask(&mut session, &[0x12, 1, 0x85, 0, 252, 0]).unwrap();
    assert_eq!(&page[8..], b"https://storage.example/\0\0\0\0");
    assert!(ask(&mut session, &[0x12, 1, 0, 0, 252, 0]).unwrap()[4..].contains(&0x85));
    let host = Host::start(&[VolumeSpec::plain("disk", 16 << 20)]);
    let mut session = host.plain("disk");
    assert!(ask(&mut session, &[0x12, 1, 0x85, 0, 252, 0]).unwrap_err().is(&Sense::INVALID_FIELD_IN_CDB));
    assert!(!ask(&mut session, &[0x12, 1, 0, 0, 252, 0]).unwrap()[4..].contains(&0x85));
}
