//! Renews the lease of a volume's keys: a thread that follows their source while the volume is attached.
//!
//! A new epoch is taken over when the source reports it: from then on nothing is sealed under an older one. While the source cannot be
//! reached the keys are used until the lease ends; then they are wiped. They are wiped at once when the source refuses. The source is asked
//! again and again, and when it agrees there are keys again. The lease counts from the moment at which the source was *asked*, on a clock that
//! a sleeping machine does not stop. Absent: what sources say and how they are reached (`key_source`), sealing (`sealing`).

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use strongroom_block::CryptoCounters;
use strongroom_seal::{SealContext, VolumeSealer};

use crate::completion::lock;
use crate::pipeline::boot_time::BootTime;
use crate::pipeline::current_keys::CurrentKeys;
use crate::{KeyRequest, KeySource, KeySourceError, VolumeKeys};

/// How long one question waits for a change, at most; a quarter of the lease if that is less.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Pauses between questions to a source that is away; they double.
const AWAY_PAUSE_MIN: Duration = Duration::from_millis(200);
const AWAY_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Between questions to one that has refused.
const REFUSED_PAUSE_MIN: Duration = Duration::from_secs(2);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Between questions because of blocks under unknown epochs, which a storage host can make up as many as it likes: it doubles with each
/// that brings nothing new.
const ASK_PAUSE_MIN: Duration = Duration::from_millis(500);
const ASK_PAUSE_MAX: Duration = Duration::from_secs(300);
/// A read waits no longer for the next question; it fails.
const ASK_WAIT_MAX: Duration = Duration::from_secs(2);

/// How an attachment stands with its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStatus {
    /// The epoch that new writes are sealed under.
    pub epoch: u32,
    /// Every epoch that can be opened, newest first; none while the keys are gone.
    pub epochs: Vec<u32>,
    /// They are for writing too.
    pub may_seal: bool,
    /// How long they may still be used if the source says nothing more.
    pub lease_left: Duration,
    /// Why the source could last not be asked, or what it refused.
    pub trouble: Option<String>,
}

/// What follows the source of an attachment's keys.
pub(crate) struct KeyRenewer(Arc<RenewalThread>);

struct RenewalThread {
    source: Arc<dyn KeySource>,
    request: KeyRequest,
    /// Of every epoch but for the epoch.
    context: SealContext,
    counters: Arc<CryptoCounters>,
    keys: Weak<CurrentKeys>,
    /// Tells the engine that it may look again.
    notify: Box<dyn Fn() + Send + Sync>,
    state: Mutex<Renewal>,
    /// The end.
    changed: Condvar,
}

struct Renewal {
    revision: u64,
    /// The newest epoch seen: the source may not go back.
    epoch: u32,
    lease: Duration,
    /// When the answer was asked for that was taken over last.
    asked: BootTime,
    /// When the newest revision arrived.
    arrived: BootTime,
    trouble: Option<String>,
    questions: Questions,
    ended: bool,
}

/// Questions because of blocks under unknown epochs, one after the other, numbered. Only one that was sent after a block was met says
/// anything about it.
#[derive(Default)]
struct Questions {
    wanted: u64,
    sent: u64,
    answered: u64,
    sent_at: Option<Instant>,
    /// After it no other one for so long.
    pause: Duration,
    /// There is a thread that asks.
    is_running: bool,
}

impl Questions {
    /// How long until another one may be sent.
    fn wait(&self) -> Duration {
        self.sent_at.map_or(Duration::ZERO, |at| self.pause.saturating_sub(at.elapsed()))
    }

    /// One is sent now. Until it is known to bring something, the next one has to wait longer.
    fn send(&mut self) {
        self.sent = self.wanted.max(self.sent);
        self.sent_at = Some(Instant::now());
        self.pause = (self.pause * 2).clamp(ASK_PAUSE_MIN, ASK_PAUSE_MAX);
    }
}

/// What a sealer is made of, besides keys.
pub(crate) struct KeyOrigin {
    pub(crate) source: Arc<dyn KeySource>,
    pub(crate) request: KeyRequest,
    pub(crate) context: SealContext,
    pub(crate) counters: Arc<CryptoCounters>,
}

impl KeyRenewer {
    /// Follows the source that has just given `keys`, asked for at `asked`, for as long as there is `current`.
    pub(crate) fn start(
        lent: KeyOrigin,
        keys: &VolumeKeys,
        asked: BootTime,
        current: &Arc<CurrentKeys>,
        notify: Box<dyn Fn() + Send + Sync>,
    ) -> std::io::Result<KeyRenewer> {
        let KeyOrigin { source, request, context, counters } = lent;
        let state = Renewal {
            revision: keys.revision,
            epoch: keys.current_epoch,
            lease: keys.lease.unwrap_or(Duration::MAX),
            asked,
            arrived: BootTime::now(),
            trouble: None,
            questions: Questions::default(),
            ended: false,
        };
        let shared = Arc::new(RenewalThread {
            source,
            request,
            context,
            counters,
            keys: Arc::downgrade(current),
            notify,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let follower = Arc::clone(&shared);
        std::thread::Builder::new().name("strongroom-keys".into()).spawn(move || follower.follow())?;
        Ok(KeyRenewer(shared))
    }

    /// Asks once more, soon, because of a block under an epoch that there is no key for; the number of that question. The engine is
    /// told when it is answered. `None` if nobody can be asked, or need not be: an epoch before the current one has no key any more.
    pub(crate) fn ask(&self, epoch: u32) -> Option<u64> {
        let mut state = lock(&self.0.state);
        if !state.may_ask(epoch) {
            return None;
        }
        let Questions { wanted, sent, is_running, .. } = &mut state.questions;
        *wanted = *sent + 1;
        let question = *wanted;
        if !*is_running {
            let shared = Arc::clone(&self.0);
            let asker = std::thread::Builder::new().name("strongroom-keys-2".into());
            if let Err(error) = asker.spawn(move || shared.ask_questions()) {
                tracing::warn!(%error, "cannot ask for the key of a block");
                return None;
            }
            *is_running = true;
        }
        Some(question)
    }

    /// Whether a question has been answered, or never will be.
    pub(crate) fn is_answered(&self, question: u64) -> bool {
        let state = lock(&self.0.state);
        state.ended || state.questions.answered >= question
    }

    /// As [`KeyRenewer::ask`], here and now; whether it was asked.
    pub(crate) fn ask_and_wait(&self, epoch: u32) -> bool {
        let wait = {
            let state = lock(&self.0.state);
            if !state.may_ask(epoch) {
                return false;
            }
            state.questions.wait()
        };
        if self.0.sleep(wait) {
            return false;
        }
        lock(&self.0.state).questions.send();
        self.0.ask_now();
        (self.0.notify)();
        true
    }

    /// Has the source begin a new epoch and destroy the keys of all others, and takes that over.
    pub(crate) fn destroy_keys(&self) -> Result<u32, KeySourceError> {
        let epoch = self.0.source.destroy_keys(&self.0.request)?;
        self.0.ask_now();
        (self.0.notify)();
        Ok(epoch)
    }

    /// What to tell of the source.
    pub(crate) fn trouble(&self) -> (u32, Option<String>) {
        let state = lock(&self.0.state);
        (state.epoch, state.trouble.clone())
    }

    /// Nothing is taken over any more.
    pub(crate) fn end(&self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

impl Renewal {
    /// Whether a block under this epoch is worth a question now.
    fn may_ask(&self, epoch: u32) -> bool {
        !self.ended && epoch > self.epoch && self.questions.wait() <= ASK_WAIT_MAX
    }
}

impl RenewalThread {
    fn follow(&self) {
        let (mut pause, mut refused_pause) = (AWAY_PAUSE_MIN, REFUSED_PAUSE_MIN);
        loop {
            let Some(has_keys) = self.keys.upgrade().map(|current| current.exist()) else { return };
            let (seen, lease) = {
                let state = lock(&self.state);
                if state.ended {
                    return;
                }
                (state.revision, state.lease)
            };
            let asked = BootTime::now();
            let answer = match has_keys {
                true => self.source.changed_keys(&self.request, seen, (lease / 4).min(WAIT_MAX)),
                false => self.source.volume_keys(&self.request).map(Some),
            };
            match answer.and_then(|keys| self.take(keys, asked)) {
                Ok(()) => (pause, refused_pause) = (AWAY_PAUSE_MIN, REFUSED_PAUSE_MIN),
                Err(error) => {
                    let refused = !matches!(error, KeySourceError::Unreachable(_));
                    self.failed(&error);
                    let (pause, most) = match refused {
                        true => (&mut refused_pause, REFUSED_PAUSE_MAX),
                        false => (&mut pause, AWAY_PAUSE_MAX),
                    };
                    if self.sleep(*pause) {
                        return;
                    }
                    *pause = (*pause * 2).min(most);
                }
            }
        }
    }

    fn ask_questions(&self) {
        loop {
            let wait = {
                let questions = &mut lock(&self.state).questions;
                let wait = questions.wait();
                if wait > ASK_WAIT_MAX {
                    // Others asked meanwhile, in vain: those who wait are told that nothing came.
                    (questions.answered, questions.is_running) = (questions.wanted, false);
                }
                wait
            };
            if wait > ASK_WAIT_MAX {
                return (self.notify)();
            }
            if self.sleep(wait) {
                return;
            }
            let question = {
                let questions = &mut lock(&self.state).questions;
                questions.send();
                questions.sent
            };
            self.ask_now();
            let questions = &mut lock(&self.state).questions;
            questions.answered = question;
            questions.is_running = questions.wanted > question;
            let goes_on = questions.is_running;
            (self.notify)();
            if !goes_on {
                return;
            }
        }
    }

    fn ask_now(&self) {
        let asked = BootTime::now();
        let answer = self.source.volume_keys(&self.request);
        if let Err(error) = answer.and_then(|keys| self.take(Some(keys), asked)) {
            self.failed(&error);
        }
    }

    /// Whether it has ended meanwhile.
    fn sleep(&self, pause: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, pause, |state| !state.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// The source has answered: with keys, or that they are as they were.
    fn take(&self, keys: Option<VolumeKeys>, asked: BootTime) -> Result<(), KeySourceError> {
        let Some(current) = self.keys.upgrade() else { return Ok(()) };
        let mut state = lock(&self.state);
        let is_late = |keys: &VolumeKeys| keys.revision < state.revision && asked < state.arrived;
        if state.ended || asked < state.asked || keys.as_ref().is_some_and(is_late) {
            // The source did not know yet what a later answer has told since.
            return Ok(());
        }
        if let Some(keys) = keys {
            if keys.current_epoch < state.epoch {
                let (found, known) = (keys.current_epoch, state.epoch);
                return Err(KeySourceError::Refused(format!(
                    "the key server went back from key epoch {known} to {found}: it may have been restored from an old backup. \
                     Restore a newer one, or rotate the volume's key there until it is past epoch {known}"
                )));
            }
            if keys.revision < state.revision {
                // It may have rights that were taken since. Another server, or this one later, may know what was told before.
                let (found, known) = (keys.revision, state.revision);
                return Err(KeySourceError::Unreachable(format!(
                    "the key server went back from revision {known} of the volume's keys to {found}: it is an older copy of itself. \
                     Restore a newer one, or rotate the volume's key there"
                )));
            }
            let context = SealContext { epoch: keys.current_epoch, ..self.context };
            let sealer = VolumeSealer::blind(&keys.keys, context, Arc::clone(&self.counters))
                .map_err(|error| KeySourceError::Refused(error.to_string()))?;
            if keys.current_epoch > state.epoch {
                tracing::info!(
                    volume = self.request.volume,
                    epoch = keys.current_epoch,
                    "the volume has a new key epoch"
                );
                state.questions.pause = Duration::ZERO;
            }
            if keys.revision > state.revision {
                state.arrived = BootTime::now();
            }
            (state.revision, state.epoch) = (keys.revision, keys.current_epoch);
            state.lease = keys.lease.unwrap_or(Duration::MAX);
            current.replace(sealer, keys.may_seal);
        }
        state.asked = asked;
        current.lend_until(asked.after(state.lease));
        if state.trouble.take().is_some() {
            tracing::info!(volume = self.request.volume, "the key server answers again");
        }
        drop(state);
        (self.notify)();
        Ok(())
    }

    fn failed(&self, error: &KeySourceError) {
        let Some(current) = self.keys.upgrade() else { return };
        let mut state = lock(&self.state);
        if state.ended {
            return;
        }
        let words = error.to_string();
        if state.trouble.as_ref() != Some(&words) {
            tracing::warn!(volume = self.request.volume, %error, "the key server");
        }
        state.trouble = Some(words.clone());
        drop(state);
        if !matches!(error, KeySourceError::Unreachable(_)) {
            current.revoke(&words);
            (self.notify)();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves that a thread that asks for keys whose lease has ended and the thread that renews it never wait for each other; which answers
    //! are too late to count; and that a storage host cannot make us ask without end.
    use std::sync::mpsc::sync_channel;

    use strongroom_block::{BlockSize, Custody, SealingDomain, VolumeId};
    use strongroom_seal::{KeyPurpose, VolumeKeyFile};

    use super::*;
    use crate::pipeline::sealing::Sealing;

    /// Answers at once, always the same, and lends for no time at all.
    struct Hasty;

    impl KeySource for Hasty {
        fn custody(&self) -> Custody {
            Custody::KeyServer
        }

        fn volume_keys(&self, _: &KeyRequest) -> Result<VolumeKeys, KeySourceError> {
            let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]);
            Ok(VolumeKeys {
                keys,
                domain: None,
                current_epoch: 1,
                may_seal: true,
                revision: 1,
                lease: Some(Duration::ZERO),
            })
        }

        fn changed_keys(&self, _: &KeyRequest, _: u64, _: Duration) -> Result<Option<VolumeKeys>, KeySourceError> {
            Ok(None)
        }
    }

    struct Attachment {
        sealing: Arc<Sealing>,
        keys: VolumeKeys,
    }

    impl Attachment {
        fn new() -> Attachment {
            let domain = SealingDomain([2; 16]);
            let request = KeyRequest { volume: "vault".into(), volume_id: VolumeId([1; 16]), domain };
            let keys = Silent.volume_keys(&request).unwrap();
            let context = SealContext::new(domain, BlockSize::new(512).unwrap(), 1);
            let counters = Arc::new(CryptoCounters::new());
            let sealing = Arc::new(Sealing::new(VolumeSealer::blind(&keys.keys, context, counters.clone()).unwrap()));
            let asked = BootTime::now();
            sealing.lend(&keys, asked);
            let lent = KeyOrigin { source: Arc::new(Silent), request, context, counters };
            let renewer = KeyRenewer::start(lent, &keys, asked, sealing.keys(), Box::new(|| ())).unwrap();
            assert!(sealing.key_renewer.set(renewer).is_ok());
            Attachment { sealing, keys }
        }

        fn shared(&self) -> &RenewalThread {
            &self.sealing.key_renewer.get().unwrap().0
        }

        /// An answer arrives.
        fn arrives(&self, epoch: u32, revision: u64, asked: BootTime) -> Result<(), KeySourceError> {
            let text = self.keys.keys.to_text().replace("epoch 1", &format!("epoch {epoch}"));
            let keys = VolumeKeyFile::parse(&text).unwrap();
            let keys = VolumeKeys { keys, current_epoch: epoch, revision, ..self.keys.clone() };
            self.shared().take(Some(keys), asked)
        }
    }

    impl Drop for Attachment {
        fn drop(&mut self) {
            self.sealing.end();
        }
    }

    /// Has nothing new, and lends for long.
    struct Silent;

    impl KeySource for Silent {
        fn custody(&self) -> Custody {
            Custody::KeyServer
        }

        fn volume_keys(&self, _: &KeyRequest) -> Result<VolumeKeys, KeySourceError> {
            let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[7; 32]);
            let lease = Some(Duration::from_secs(3600));
            Ok(VolumeKeys { keys, domain: None, current_epoch: 1, may_seal: true, revision: 5, lease })
        }

        fn changed_keys(&self, _: &KeyRequest, _: u64, _: Duration) -> Result<Option<VolumeKeys>, KeySourceError> {
            std::thread::sleep(Duration::from_millis(1));
            Err(KeySourceError::Unreachable("it says nothing".into()))
        }
    }

    #[test]
    fn an_answer_that_was_overtaken_is_not_a_server_that_went_back() {
        let kept = Attachment::new();
        let (first, second) = (BootTime::now(), BootTime::now());
        // Asked first, answered after the rotation; the other one, asked later, was answered before it.
        kept.arrives(2, 6, first).unwrap();
        kept.arrives(1, 5, second).unwrap();
        let (epoch, _) = kept.sealing.key_renewer.get().unwrap().trouble();
        assert_eq!((epoch, kept.sealing.has_keys()), (2, true));
        let error = kept.arrives(1, 5, BootTime::now()).unwrap_err();
        assert!(error.to_string().contains("went back"), "asked when the new epoch was known: {error}");
        let error = kept.arrives(1, 9, second).unwrap_err();
        assert!(error.to_string().contains("went back"), "newer, with an older epoch: {error}");
    }

    /// A key server that was rolled back would bring back a right that was taken: it is not heeded, whether there are keys or not.
    #[test]
    fn attack_key_an_older_revision_after_the_lease_is_refused() {
        let kept = Attachment::new();
        let taken = VolumeKeys { may_seal: false, revision: 7, ..kept.keys.clone() };
        kept.shared().take(Some(taken.clone()), BootTime::now()).unwrap();
        let older = |expected: bool| {
            let error = kept.arrives(1, 5, BootTime::now()).unwrap_err();
            assert!(matches!(&error, KeySourceError::Unreachable(text) if text.contains("went back")), "{error}");
            assert_eq!(kept.sealing.has_keys(), expected);
        };
        older(true);
        kept.sealing.keys().lend_until(BootTime::now());
        assert!(kept.sealing.expire());
        older(false);
        // The newest one is taken, and what it says of rights.
        kept.shared().take(Some(taken), BootTime::now()).unwrap();
        assert!(kept.sealing.key_status().is_some_and(|status| !status.epochs.is_empty() && !status.may_seal));
    }

    #[test]
    fn questions_that_bring_nothing_new_become_rare() {
        let kept = Attachment::new();
        let renewer = kept.sealing.key_renewer.get().unwrap();
        assert_eq!(renewer.ask(1), None, "the current one has a key, or is of no use");
        let waits = |sent: u32| {
            let mut state = lock(&kept.shared().state);
            (0..sent).for_each(|_| state.questions.send());
            (state.questions.pause, state.may_ask(2))
        };
        assert_eq!(waits(1), (ASK_PAUSE_MIN, true));
        assert_eq!(waits(4), (16 * ASK_PAUSE_MIN, false), "a read does not wait so long");
        assert_eq!(waits(20).0, ASK_PAUSE_MAX);
        assert_eq!((renewer.ask(2), renewer.ask_and_wait(2)), (None, false));
        kept.arrives(2, 6, BootTime::now()).unwrap();
        assert_eq!(lock(&kept.shared().state).questions.pause, Duration::ZERO, "it brought something");
        assert!(lock(&kept.shared().state).may_ask(3));
    }

    #[test]
    fn a_lease_that_ends_while_it_is_renewed_stops_nobody() {
        let domain = SealingDomain([2; 16]);
        let request = KeyRequest { volume: "vault".into(), volume_id: VolumeId([1; 16]), domain };
        let keys = Hasty.volume_keys(&request).unwrap();
        let context = SealContext::new(domain, BlockSize::new(512).unwrap(), 1);
        let counters = Arc::new(CryptoCounters::new());
        let sealer = VolumeSealer::blind(&keys.keys, context, counters.clone()).unwrap();
        let sealing = Arc::new(Sealing::new(sealer));
        let asked = BootTime::now();
        sealing.lend(&keys, asked);
        let lent = KeyOrigin { source: Arc::new(Hasty), request, context, counters };
        let renewer = KeyRenewer::start(lent, &keys, asked, sealing.keys(), Box::new(|| ())).unwrap();
        assert!(sealing.key_renewer.set(renewer).is_ok());
        let (done, is_done) = sync_channel(1);
        let user = Arc::clone(&sealing);
        let asker = std::thread::spawn(move || {
            for _ in 0..50_000 {
                assert!(user.sealer().unwrap_err().message.contains("longer than its keys are lent"));
            }
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(120)).expect("they wait for each other for ever");
        asker.join().unwrap();
        assert!(sealing.expire(), "it has ended all the while");
        assert!(!sealing.has_keys());
        sealing.end();
    }
}
