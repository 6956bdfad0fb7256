//! Proves that a standby has everything that was acknowledged, that it takes over, and that an old primary does not go on; and that a
//! backup opens elsewhere.

use std::sync::Arc;

use crate::site::{Site, client, domain, eventually, master, node, volume};
use strongroom_handshake::NodeKey;
use strongroom_keyserver::{
    AuditError, AuditHead, Client, ClientError, Database, DatabaseError, KeyServer, Rights, Role, ServerOptions,
};

struct Pair {
    site: Site,
    standby_key: Arc<NodeKey>,
}

impl Pair {
    fn new(settings: &str) -> Pair {
        Pair { site: Site::with(settings), standby_key: node(102) }
    }

    fn primary(&self) -> KeyServer {
        let key = self.standby_key.public();
        self.site.start_with(&format!("[[identity]]\nname = \"standby\"\nkey = \"{key}\"\nroles = [\"standby\"]\n"))
    }

    fn standby(&self, directory: &str, primary: &KeyServer) -> KeyServer {
        let site = Site { settings: String::new(), ..Site::new() };
        let mut config = site.config(directory, "");
        config.directory = self.site.path(directory);
        config.standby_of = Some(primary.local_addresses()[0].to_string());
        config.primary_key = Some(self.site.node.public().to_string());
        let database = Database::open_or_create_standby(&config.directory, &master(2)).unwrap();
        KeyServer::start(ServerOptions { config, node_key: Arc::clone(&self.standby_key), database }).unwrap()
    }

    fn client(&self, servers: &[&KeyServer]) -> Client {
        client(servers, &[self.site.node.public(), self.standby_key.public()], &self.site.admin)
    }
}

#[test]
fn a_standby_takes_over_and_the_old_primary_is_fenced() {
    let pair = Pair::new("standby_required = true\n");
    let primary = pair.primary();
    let admin = pair.client(&[&primary]);
    let error = admin.create(volume(1)).unwrap_err();
    assert!(error.is_temporary() && error.to_string().contains("standby"), "{error}");
    let standby = pair.standby("standby", &primary);
    let both = pair.client(&[&primary, &standby]);
    eventually("the standby follows", || admin.create(volume(1)).is_ok());
    let keys = both.fetch(domain(1)).unwrap().keys;
    for expected in 2..6 {
        assert_eq!(admin.rotate(domain(1)).unwrap(), expected);
        // A client that was told of an epoch finds it at the standby.
        let there = pair.client(&[&standby]).status().unwrap();
        assert!(there.sequence + 1 >= admin.status().unwrap().sequence, "{there:?}");
    }
    let error = pair.client(&[&standby]).fetch(domain(1)).unwrap_err();
    assert!(error.to_string().contains("standby"), "{error}");
    let status = pair.client(&[&standby]).promote().unwrap();
    assert_eq!((status.role, status.generation), (Role::Primary, 2));
    // The promoted one tells the old one, which lives on.
    eventually("the old primary is fenced", || admin.status().unwrap().role == Role::Fenced);
    assert!(admin.fetch(domain(1)).unwrap_err().to_string().contains("taken its place"));
    let grant = both.fetch(domain(1)).unwrap();
    assert_eq!(grant.current_epoch, 5);
    // Revisions are sequences: none that the old primary may have told is told again.
    assert!(both.rotate(domain(1)).is_ok() && both.fetch(domain(1)).unwrap().revision > 1 << 32);
    // What the old primary gave out is out for another lease.
    let error = both.destroy_epoch(domain(1), 1, false).unwrap_err();
    assert!(matches!(error, ClientError::Conflict(_)), "{error}");
    assert_eq!(grant.keys.volume_key(1), keys.volume_key(1));
    assert_eq!(both.generation(), 2);
    // No epoch that the old primary may have begun is begun again with another key.
    assert_eq!(both.rotate(domain(1)).unwrap(), 7 + 1024);
    // It stays what it is.
    primary.stop();
    let primary = pair.primary();
    assert_eq!(pair.client(&[&primary]).status().unwrap().role, Role::Fenced);
}

#[test]
fn an_old_primary_that_was_not_told_is_not_heeded() {
    let pair = Pair::new("");
    let primary = pair.primary();
    let admin = pair.client(&[&primary]);
    admin.create(volume(1)).unwrap();
    let standby = pair.standby("standby", &primary);
    let sequence = admin.status().unwrap().sequence;
    eventually("the standby follows", || pair.client(&[&standby]).status().unwrap().sequence >= sequence);
    primary.stop();
    pair.client(&[&standby]).promote().unwrap();
    let new_address = standby.local_addresses()[0].to_string();
    // The old one is back, elsewhere, and thinks that it is the primary.
    let old = pair.primary();
    // Nobody told this client either: it asks both before it heeds one.
    let both = pair.client(&[&old, &standby]);
    both.fetch(domain(1)).unwrap();
    assert_eq!(both.generation(), 2, "{new_address}");
    let error = {
        let only_old = pair.client(&[&old]);
        only_old.expect_generation(2);
        only_old.fetch(domain(1)).unwrap_err()
    };
    assert!(matches!(error, ClientError::Superseded { generation: 1, known: 2 }), "{error}");
}

#[test]
fn a_standby_that_never_followed_is_not_promoted() {
    let pair = Pair::new("");
    // Its identity has no role there.
    let primary = pair.site.start();
    let standby = pair.standby("standby", &primary);
    let error = pair.client(&[&standby]).promote().unwrap_err();
    assert!(matches!(&error, ClientError::Conflict(text) if text.contains("never followed")), "{error}");
    primary.stop();
}

#[test]
fn a_standby_that_was_away_catches_up_and_another_log_is_not_followed() {
    let pair = Pair::new("");
    let primary = pair.primary();
    let admin = pair.client(&[&primary]);
    admin.create(volume(1)).unwrap();
    let standby = pair.standby("standby", &primary);
    let caught_up = |standby: &KeyServer| {
        let (here, there) = (admin.status().unwrap(), pair.client(&[standby]).status().unwrap());
        here.head == there.head && here.sequence == there.sequence
    };
    eventually("it has everything", || caught_up(&standby));
    standby.stop();
    admin.rotate(domain(1)).unwrap();
    admin.rotate(domain(1)).unwrap();
    let standby = pair.standby("standby", &primary);
    eventually("it catches up", || caught_up(&standby));
    let sequence = pair.client(&[&standby]).status().unwrap().sequence;
    standby.stop();
    // The primary comes back as an older copy of itself, and goes on from there.
    primary.stop();
    std::fs::remove_dir_all(pair.site.path("keys")).unwrap();
    let primary = pair.primary();
    let admin = pair.client(&[&primary]);
    admin.create(volume(1)).unwrap();
    let standby = pair.standby("standby", &primary);
    (2..12).for_each(|epoch| assert_eq!(admin.rotate(domain(1)).unwrap(), epoch));
    eventually("it was offered everything, twice", || followed(&primary) >= 2);
    let there = pair.client(&[&standby]).status().unwrap();
    assert_eq!(there.sequence, sequence, "nothing that it had was given up");
}

/// Copies of a server's two files.
struct Files([Vec<u8>; 2]);

impl Files {
    const NAMES: [&str; 2] = ["keys/keys.redb", "keys/keys.shred"];

    fn of(site: &Site) -> Files {
        Files(Files::NAMES.map(|name| std::fs::read(site.path(name)).unwrap()))
    }

    fn put(&self, site: &Site, which: &[usize]) {
        which.iter().for_each(|&file| std::fs::write(site.path(Files::NAMES[file]), &self.0[file]).unwrap());
    }
}

#[test]
fn attack_key_roll_back_the_database() {
    let pair = Pair::new("");
    let site = &pair.site;
    let stopped = |change: &dyn Fn(&Client)| {
        let server = site.start();
        change(&site.admin(&server));
        server.stop();
        Files::of(site)
    };
    let made = stopped(&|admin| drop(admin.create(volume(1)).unwrap()));
    let rotated = stopped(&|admin| assert_eq!(admin.rotate(domain(1)).unwrap(), 2));
    let destroyed = stopped(&|admin| admin.destroy_epoch(domain(1), 1, true).unwrap());
    // Without its shred file: a key was made since, or destroyed. Nothing starts, and nothing of either file is touched.
    for (older, newer) in [(&made, &rotated), (&made, &destroyed), (&rotated, &destroyed)] {
        newer.put(site, &[0, 1]);
        older.put(site, &[0]);
        let error = Database::open(&site.path("keys"), &master(1)).map(drop).unwrap_err();
        assert!(matches!(error, DatabaseError::RolledBack { .. }), "{error}");
        assert!(error.to_string().contains("Bring back the newest database"), "{error}");
        let now = Files::of(site);
        assert!(now.0[1] == newer.0[1], "the shred file is as it was");
        newer.put(site, &[0]);
        let server = site.start();
        let grant = site.admin(&server).fetch(domain(1)).unwrap();
        assert_eq!(grant.current_epoch, 2, "nothing was lost by trying");
        server.stop();
    }

    // With it: the server itself cannot know, and starts. What knows more does not believe it.
    destroyed.put(site, &[0, 1]);
    let primary = pair.primary();
    let standby = pair.standby("standby", &primary);
    let admin = pair.client(&[&primary]);
    let before = Files::of(site);
    let older_grant = admin.fetch(domain(1)).unwrap();
    admin.revoke(domain(1), node(9).public()).unwrap_err();
    admin.grant(domain(1), node(9).public(), Rights::ALL).unwrap();
    admin.revoke(domain(1), node(9).public()).unwrap();
    let newer_grant = admin.fetch(domain(1)).unwrap();
    assert!(newer_grant.revision > older_grant.revision && newer_grant.current_epoch > older_grant.current_epoch);
    let kept = admin.status().unwrap().head;
    let standby_status = |standby: &KeyServer| pair.client(&[standby]).status().unwrap();
    eventually("the standby has it all", || standby_status(&standby).head == admin.status().unwrap().head);
    let there = standby_status(&standby);
    standby.stop();
    primary.stop();
    before.put(site, &[0, 1]);
    let primary = pair.primary();
    let admin = pair.client(&[&primary]);
    assert_eq!(admin.fetch(domain(1)).unwrap().current_epoch, older_grant.current_epoch, "it serves the older state");
    // An initiator that knows a newer revision.
    let error = admin.watch(domain(1), newer_grant.revision, std::time::Duration::ZERO).unwrap_err();
    assert!(matches!(error, ClientError::RolledBack { known, .. } if known == newer_grant.revision), "{error}");
    // Against a retained head: the log is shorter, and later another one.
    let head_at = |lines: u64| {
        let page = admin.audit(1).unwrap();
        page.lines.iter().take(usize::try_from(lines).unwrap()).try_fold(page.start, AuditHead::then).unwrap()
    };
    assert!(head_at(u64::MAX).lines < kept.lines, "`key audit --head` says that its end was cut off");
    while head_at(u64::MAX).lines < kept.lines || admin.status().unwrap().sequence < there.sequence + 2 {
        admin.rotate(domain(1)).unwrap();
    }
    assert_eq!(head_at(kept.lines).check(&kept), Err(AuditError::Altered { lines: kept.lines }));
    // The standby: it is offered everything, and keeps what it has.
    let standby = pair.standby("standby", &primary);
    eventually("it was offered everything, twice", || followed(&primary) >= 2);
    let now = standby_status(&standby);
    assert_eq!((now.sequence, now.head), (there.sequence, there.head), "the standby gives nothing up");
}

/// How many questions of followers a server has answered.
fn followed(server: &KeyServer) -> u64 {
    let text = server.metrics();
    let done = text.lines().find(|line| line.contains("kind=\"follow\",result=\"done\""));
    done.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
}

#[test]
fn a_backup_opens_elsewhere_with_the_same_master_key() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    for byte in 1..40 {
        admin.create(volume(byte)).unwrap();
    }
    admin.rotate(domain(7)).unwrap();
    let keys = admin.fetch(domain(7)).unwrap().keys;
    let mut backup = Vec::new();
    admin
        .backup(|bytes| {
            backup.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    let before = admin.status().unwrap();
    // Made while the server goes on.
    admin.rotate(domain(7)).unwrap();
    server.stop();
    let restore = |directory: &str, key: u8, bytes: &[u8]| {
        Database::restore(&site.path(directory), &master(key), &mut &bytes[..])
    };
    let database = restore("elsewhere", 1, &backup).unwrap();
    assert_eq!(database.volumes(), 39);
    let (config, node_key) = (site.config("elsewhere", ""), Arc::clone(&site.node));
    let server = KeyServer::start(ServerOptions { config, node_key, database }).unwrap();
    let admin = site.admin(&server);
    assert_eq!(admin.fetch(domain(7)).unwrap().keys, keys);
    // Epoch 3 was given out by the old server, with another key.
    assert_eq!(admin.rotate(domain(7)).unwrap(), 3 + 1024);
    let after = admin.status().unwrap();
    assert!(after.generation > before.generation && after.sequence > before.sequence);
    let lines = admin.audit(1).unwrap().lines;
    assert!(lines.iter().any(|line| line.text.contains("restore from")));
    assert!(matches!(restore("wrong", 2, &backup), Err(DatabaseError::MasterKey(_))));
    assert!(matches!(restore("elsewhere", 1, &backup), Err(DatabaseError::Exists { .. })));
    for (at, bytes) in [backup.len() / 2, backup.len() - 1, 20, 3].into_iter().zip(std::iter::repeat(&backup)) {
        assert!(restore(&format!("cut-{at}"), 1, &bytes[..at]).is_err(), "cut at {at}");
        let mut altered = bytes.clone();
        altered[at] ^= 1;
        assert!(restore(&format!("altered-{at}"), 1, &altered).is_err(), "altered at {at}");
    }
}

/// Parts of two backups are not put together into a third, though both are authentic and of the same place.
#[test]
fn attack_key_mix_the_parts_of_two_backups() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    let backup = || {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        admin
            .backup(|bytes| {
                parts.push(bytes.to_vec());
                Ok(())
            })
            .unwrap();
        parts.concat()
    };
    // Magic, id, then blocks behind their lengths: the root key, and the parts.
    let blocks = |backup: &[u8]| {
        let (mut rest, mut blocks) = (&backup[24..], Vec::new());
        while let Some((length, more)) = rest.split_first_chunk::<4>() {
            let (block, after) = more.split_at(u32::from_be_bytes(*length) as usize);
            blocks.push([&length[..], block].concat());
            rest = after;
        }
        blocks
    };
    let (first, second) = (backup(), backup());
    let (ours, theirs) = (blocks(&first), blocks(&second));
    assert!(ours.len() > 3 && ours[0] == theirs[0], "one database, one root key");
    for exchanged in 1..ours.len() {
        let mut mixed = ours.clone();
        if let Some(part) = theirs.get(exchanged) {
            mixed[exchanged] = part.clone();
        }
        let mixed = [&first[..24], &mixed.concat()].concat();
        let error = Database::restore(&site.path(&format!("mixed-{exchanged}")), &master(1), &mut &mixed[..]);
        assert!(matches!(error, Err(DatabaseError::Backup(_))), "part {exchanged}");
    }
    assert!(Database::restore(&site.path("whole"), &master(1), &mut &first[..]).is_ok());
}
