//! Proves what the key server gives to whom, over real connections: the policy matrix, epochs, revocation, waiting, the log.

use std::thread;
use std::time::{Duration, Instant};

use crate::site::{PATIENCE, Site, client, domain, eventually, node, volume};
use strongroom_keyserver::{AuditError, AuditHead, AuditLine, Client, ClientError, Rights};
use strongroom_seal::{KeyPurpose, VolumeKeyFile};

const OPEN: Rights = Rights { open: true, seal: false, administer: false };
const SEAL: Rights = Rights { open: false, seal: true, administer: false };
const ADMINISTER: Rights = Rights { open: false, seal: false, administer: true };

/// Every line of the log, its chain verified.
fn log(admin: &Client) -> Vec<AuditLine> {
    let mut lines: Vec<AuditLine> = Vec::new();
    let mut head: Option<AuditHead> = None;
    loop {
        let page = admin.audit(lines.len() as u64 + 1).unwrap();
        let mut at = page.start;
        assert!(head.is_none_or(|head| head == at), "pages join");
        for line in &page.lines {
            at = at.then(line).unwrap();
        }
        if page.lines.is_empty() {
            assert_eq!(at, page.head);
            return lines;
        }
        lines.extend(page.lines);
        head = Some(at);
    }
}

#[test]
fn what_is_created_is_fetched_and_outlives_the_server() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    let info = admin.create(volume(1)).unwrap();
    assert_eq!((info.name.as_str(), info.current_epoch, info.domain), ("volume-1", 1, domain(1)));
    let grant = admin.fetch(domain(1)).unwrap();
    assert_eq!((grant.rights, grant.current_epoch, grant.revision), (Rights::ALL, 1, info.revision));
    assert_eq!(grant.keys.ids(), info.epochs);
    assert_eq!(admin.find("volume-1").unwrap(), info);
    assert!(matches!(admin.create(volume(1)), Err(ClientError::Conflict(_))));
    server.stop();
    let server = site.start();
    let again = site.admin(&server).fetch(domain(1)).unwrap();
    assert_eq!(again.keys, grant.keys);
    // The same client goes on: its old connection is gone.
    let there = client(&[&server], &[site.node.public()], &site.admin);
    assert_eq!(there.fetch(domain(1)).unwrap().keys, grant.keys);
}

#[test]
fn keys_from_elsewhere_are_taken_into_custody_and_given_back() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[0xa7; 32]);
    admin.import(volume(1), &keys).unwrap();
    assert_eq!(admin.fetch(domain(1)).unwrap().keys, keys);
    assert_eq!(admin.rotate(domain(1)).unwrap(), 2);
    let exported = admin.export(domain(1)).unwrap().keys;
    assert_eq!(exported.volume_key(1), keys.volume_key(1));
    assert_eq!(exported.epochs().collect::<Vec<_>>(), [1, 2]);
    let wrapping = VolumeKeyFile::new(KeyPurpose::Wrapping, &[1; 32]);
    assert!(matches!(admin.import(volume(2), &wrapping), Err(ClientError::Invalid(_))));
}

/// Who has which right, and what comes of each request.
#[test]
fn the_policy_matrix() {
    // A refusal more than this test makes, so that nobody is turned away.
    let site = Site::with("[limits]\nrefusals_per_minute = 1000\n");
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    // Everybody here has some right, so that all get past the handshake; it is not for volume 1.
    admin.create(volume(2)).unwrap();
    let is = |result: Result<(), ClientError>| match result {
        Ok(()) => true,
        Err(ClientError::Refused | ClientError::NotAdministrator) => false,
        Err(other) => panic!("{other}"),
    };
    let someone = node(50).public();
    for (byte, rights) in [(1, Rights::default()), (2, OPEN), (3, SEAL), (4, ADMINISTER), (5, Rights::ALL)] {
        let identity = node(byte);
        admin.grant(domain(2), identity.public(), SEAL).unwrap();
        if !rights.is_empty() {
            admin.grant(domain(1), identity.public(), rights).unwrap();
        }
        let them = site.client(&server, &identity);
        let any = !rights.is_empty();
        assert_eq!(is(them.fetch(domain(1)).map(drop)), rights.open, "fetch, {rights}");
        assert_eq!(is(them.watch(domain(1), 0, PATIENCE).map(drop)), rights.open, "watch, {rights}");
        assert_eq!(is(them.export(domain(1)).map(drop)), rights.administer, "export, {rights}");
        assert_eq!(is(them.info(domain(1)).map(drop)), any, "info, {rights}");
        assert_eq!(is(them.find("volume-1").map(drop)), any, "find, {rights}");
        assert_eq!(is(them.grant(domain(1), someone, SEAL)), rights.administer, "grant, {rights}");
        if rights.administer {
            assert!(is(them.revoke(domain(1), someone).map(drop)));
        }
        assert_eq!(is(them.revoke(domain(1), identity.public()).map(drop)), rights.administer, "revoke, {rights}");
        if rights.administer {
            admin.grant(domain(1), identity.public(), rights).unwrap();
        }
        assert_eq!(is(them.rotate(domain(1)).map(drop)), rights.administer, "rotate, {rights}");
        let current = admin.info(domain(1)).unwrap().current_epoch;
        admin.rotate(domain(1)).unwrap();
        assert_eq!(is(them.destroy_epoch(domain(1), current, true)), rights.administer, "destroy-epoch, {rights}");
        let listed: Vec<_> = them.list().unwrap().iter().map(|volume| volume.domain).collect();
        assert_eq!(listed.contains(&domain(1)), any, "list, {rights}");
        if any && !rights.administer {
            assert_eq!(them.info(domain(1)).unwrap().grants, [(identity.public(), rights)], "others' grants");
        }
        assert!(!is(them.audit(1).map(drop)), "the log is for the server's administrators");
        assert!(!is(them.create(volume(9)).map(drop)), "volumes are made by those with a role");
        assert!(!is(them.destroy(domain(9))), "unknown and forbidden are told alike");
    }
    // A server administrator administers the server, not others' volumes.
    let owner = node(5);
    site.client(&server, &owner).revoke(domain(1), site.admin.public()).unwrap();
    assert!(!is(admin.fetch(domain(1)).map(drop)) && !is(admin.rotate(domain(1)).map(drop)));
    assert!(!is(admin.grant(domain(1), site.admin.public(), OPEN)));
    assert!(admin.list().unwrap().iter().any(|volume| volume.domain == domain(1)));
    site.client(&server, &owner).destroy(domain(1)).unwrap();
    assert!(!is(site.client(&server, &owner).fetch(domain(1)).map(drop)));
}

#[test]
fn a_revoked_identity_gets_no_key_and_a_new_epoch_begins_with_it() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    let bob = node(2);
    admin.grant(domain(1), bob.public(), OPEN).unwrap();
    let their = site.client(&server, &bob);
    let before = their.fetch(domain(1)).unwrap();
    assert_eq!(admin.revoke(domain(1), bob.public()).unwrap(), 2);
    // Over the connection that is still there.
    assert!(matches!(their.fetch(domain(1)), Err(ClientError::Refused)));
    // And over a new one: nobody knows them any more.
    let error = site.client(&server, &bob).fetch(domain(1)).unwrap_err();
    assert!(matches!(error, ClientError::NotAdmitted { own } if own == bob.public()), "{error}");
    assert!(!error.is_temporary());
    let after = admin.fetch(domain(1)).unwrap();
    assert_eq!(after.current_epoch, 2);
    assert!(after.keys.volume_key(2).is_ok_and(|key| before.keys.volume_key(1) != Ok(key)));
    assert!(matches!(admin.revoke(domain(1), bob.public()), Err(ClientError::Invalid(_))));
    assert!(matches!(admin.revoke(domain(1), site.admin.public()), Err(ClientError::Conflict(_))), "the last one");
    // So is who keeps another right, but for those who administer: they could have exported the keys, and still can.
    admin.grant(domain(1), bob.public(), Rights::ALL).unwrap();
    admin.grant(domain(1), bob.public(), ADMINISTER).unwrap();
    assert_eq!(admin.info(domain(1)).unwrap().current_epoch, 2);
    admin.grant(domain(1), bob.public(), SEAL).unwrap();
    assert_eq!(admin.info(domain(1)).unwrap().current_epoch, 3);
    admin.grant(domain(1), bob.public(), ADMINISTER).unwrap();
    assert_eq!(admin.revoke(domain(1), bob.public()).unwrap(), 4);
}

#[test]
fn epochs_are_destroyed_but_not_the_current_one() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    assert!(matches!(admin.destroy_epoch(domain(1), 1, true), Err(ClientError::Conflict(_))));
    admin.rotate(domain(1)).unwrap();
    admin.destroy_epoch(domain(1), 1, true).unwrap();
    assert!(matches!(admin.destroy_epoch(domain(1), 1, true), Err(ClientError::Invalid(_))));
    let info = admin.info(domain(1)).unwrap();
    assert_eq!(info.destroyed_epochs().collect::<Vec<_>>(), [1]);
    assert_eq!(admin.fetch(domain(1)).unwrap().keys.epochs().collect::<Vec<_>>(), [2]);
}

#[test]
fn an_epoch_is_not_destroyed_while_somebody_may_write_under_it() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    admin.rotate(domain(1)).unwrap();
    assert_eq!(admin.info(domain(1)).unwrap().settles_in, Duration::ZERO, "nobody ever had epoch 1");
    admin.destroy_epoch(domain(1), 1, false).unwrap();
    let lease = admin.fetch(domain(1)).unwrap().lease;
    admin.rotate(domain(1)).unwrap();
    let left = admin.info(domain(1)).unwrap().settles_in;
    assert!(left > lease && left <= lease + lease / 64, "{left:?} of {lease:?}");
    let error = admin.destroy_epoch(domain(1), 2, false).unwrap_err();
    assert!(matches!(&error, ClientError::Conflict(text) if text.contains("--now")), "{error}");
    server.stop();
    let server = site.start();
    let admin = site.admin(&server);
    assert!(admin.destroy_epoch(domain(1), 2, false).is_err(), "who had it before is not known any more");
    admin.destroy_epoch(domain(1), 2, true).unwrap();
}

#[test]
fn a_watcher_learns_of_a_rotation_and_keeps_nobody_waiting() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    let revision = admin.create(volume(1)).unwrap().revision;
    assert_eq!(admin.watch(domain(1), revision, Duration::from_millis(1)).unwrap(), None);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| admin.watch(domain(1), revision, PATIENCE).unwrap());
        // The same client, while it waits.
        assert_eq!(admin.rotate(domain(1)).unwrap(), 2);
        let grant = watcher.join().unwrap().expect("something changed");
        assert_eq!(grant.current_epoch, 2);
        assert!(grant.revision > revision);
    });
    assert!(matches!(admin.watch(domain(1), u64::MAX, PATIENCE), Err(ClientError::RolledBack { .. })));
    // A stop waits for nobody either.
    let revision = admin.info(domain(1)).unwrap().revision;
    thread::scope(|scope| {
        let watcher = scope.spawn(|| admin.watch(domain(1), revision, PATIENCE));
        let started = Instant::now();
        server.stop();
        assert!(started.elapsed() < PATIENCE);
        assert!(!matches!(watcher.join().unwrap(), Ok(Some(_))));
    });
}

#[test]
fn the_log_tells_who_did_what_and_notices_every_change_of_it() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    let bob = node(2);
    admin.grant(domain(1), bob.public(), SEAL).unwrap();
    site.client(&server, &bob).fetch(domain(1)).unwrap_err();
    admin.fetch(domain(1)).unwrap();
    admin.revoke(domain(1), bob.public()).unwrap();
    let lines = log(&admin);
    for part in
        ["start", "create volume=volume-1", "rights=seal", "refused fetch", "fetch volume=volume-1", "revoke volume"]
    {
        assert!(lines.iter().any(|line| line.text.contains(part)), "{part} is missing in {lines:#?}");
    }
    let chain = |lines: &[AuditLine]| lines.iter().try_fold(admin.audit(1).unwrap().start, AuditHead::then);
    let head = chain(&lines).unwrap();
    for at in 0..lines.len() {
        let mut altered = lines.clone();
        altered[at].text.push('x');
        let other = chain(&altered).unwrap();
        assert_eq!(other.check(&head), Err(AuditError::Altered { lines: head.lines }));
        let mut removed = lines.clone();
        removed.remove(at);
        let found = chain(&removed);
        assert!(found.is_err() || found.unwrap().lines < head.lines);
    }
}

#[test]
fn no_more_volumes_are_made_than_there_may_be() {
    let site = Site::with("[limits]\nvolumes_max = 2\n");
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    admin.create(volume(2)).unwrap();
    assert!(matches!(admin.create(volume(3)), Err(ClientError::Conflict(text)) if text.contains("volumes_max")));
    admin.destroy(domain(1)).unwrap();
    admin.create(volume(3)).unwrap();
}

/// Pages of it are read in any order.
#[test]
fn the_log_is_read_from_anywhere() {
    let site = Site::new();
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    for epoch in 2..12 {
        assert_eq!(admin.rotate(domain(1)).unwrap(), epoch);
    }
    let whole = admin.audit(1).unwrap();
    let mut heads = vec![whole.start];
    for line in &whole.lines {
        heads.push(heads.last().unwrap().then(line).unwrap());
    }
    for from in [5, 1, 9, 3, 12, 13, 14, 100, 2] {
        let page = admin.audit(from).unwrap();
        let at = usize::try_from(from).unwrap().min(heads.len());
        assert_eq!(page.lines, whole.lines[at.min(whole.lines.len() + 1) - 1..], "from {from}");
        if !page.lines.is_empty() {
            assert_eq!(page.start, heads[at - 1], "from {from}");
        }
    }
}

#[test]
fn a_stranger_is_refused_and_a_wrong_server_is_noticed() {
    let site = Site::new();
    let server = site.start();
    let error = site.client(&server, &node(9)).fetch(domain(1)).unwrap_err();
    assert!(error.to_string().contains("strongroom key grant"), "{error}");
    let elsewhere = client(&[&server], &[node(77).public()], &site.admin);
    let error = elsewhere.fetch(domain(1)).unwrap_err();
    assert!(matches!(error, ClientError::WrongServer { presented } if presented == site.node.public()), "{error}");
    let admin = site.admin(&server);
    eventually("it is written down", || log(&admin).iter().any(|line| line.text.contains("refused connect")));
    server.stop();
    let error = admin.fetch(domain(1)).unwrap_err();
    assert!(error.is_temporary() && error.to_string().contains("check that one runs"), "{error}");
}

#[test]
fn a_hundred_callers_are_served_together() {
    let site = Site::with("[limits]\nconnections_per_identity = 200\nrepeated_lines_s = 0\n");
    let server = site.start();
    let admin = site.admin(&server);
    admin.create(volume(1)).unwrap();
    let keys = admin.fetch(domain(1)).unwrap().keys;
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let them = site.admin(&server);
                (0..4).for_each(|_| assert_eq!(them.fetch(domain(1)).unwrap().keys, keys));
            });
        }
    });
    let fetches = log(&admin).iter().filter(|line| line.text.contains(" fetch ")).count();
    assert_eq!(fetches, 1 + 32 * 4, "each is written down");
    assert!(server.metrics().contains("strongroom_keyserver_requests_total{kind=\"fetch\",result=\"done\"} 129"));
}
