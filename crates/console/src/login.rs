//! Who is logged in: links that are good once, sessions, and what each form must bring along. Time is an argument.
//!
//! Absent: HTTP.

use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use zeroize::{Zeroize, ZeroizeOnDrop};

/// How long a link is good.
pub(crate) const LINK_LIFE: Duration = Duration::from_secs(600);
/// Browsers that are logged in at a time; for a further one the one that was idle for longest makes way.
const SESSIONS_MAX: usize = 4;
/// How long a login lasts at most, however busy.
const SESSION_LIFE: Duration = Duration::from_secs(12 * 3600);
/// Logins that may be tried at once; then [`ATTEMPT_EVERY`].
const ATTEMPTS_MAX: u32 = 10;
/// How often another login may be tried.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);
/// Bytes of a secret: it cannot be guessed, however often it is tried.
const SECRET_BYTES: usize = 32;

/// Unguessable text: letters and digits.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Secret(String);

impl Secret {
    fn random() -> Secret {
        Secret(random_hex::<SECRET_BYTES>())
    }

    /// Compares in a time that does not depend on where they differ.
    pub(crate) fn is(&self, other: &str) -> bool {
        let differences = self.0.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == other.len() && std::hint::black_box(differences) == 0
    }

    /// For where it belongs: a cookie, a form.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).expect("the system has randomness: it has given keys before");
    let mut text = String::with_capacity(2 * BYTES);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    bytes.zeroize();
    text
}

/// A name that nobody outside can know, for a URL's path.
pub(crate) fn random_name() -> String {
    random_hex::<16>()
}

/// Why somebody is not logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginRefused {
    /// The link was used, has expired, was replaced by a newer one, or is of another console.
    Link,
    /// Too many attempts just now.
    TooMany,
}

/// All links and sessions of a console.
pub(crate) struct Logins {
    link: Option<(Secret, Instant)>,
    sessions: Vec<Session>,
    idle_max: Duration,
    attempts: u32,
    /// When `attempts` was counted down last.
    counted: Option<Instant>,
}

struct Session {
    cookie: Secret,
    form_token: Secret,
    begun: Instant,
    used: Instant,
}

impl Logins {
    pub(crate) fn new(idle_max: Duration) -> Logins {
        Logins { link: None, sessions: Vec::new(), idle_max, attempts: 0, counted: None }
    }

    /// What a new link ends with; the one before is good no longer.
    pub(crate) fn new_link(&mut self, now: Instant) -> String {
        let secret = Secret::random();
        let text = secret.reveal().to_owned();
        self.link = Some((secret, now + LINK_LIFE));
        text
    }

    /// Takes a link; the cookie of a new session.
    pub(crate) fn log_in(&mut self, token: &str, now: Instant) -> Result<Secret, LoginRefused> {
        self.count_attempt(now)?;
        if !self.link.as_ref().is_some_and(|(secret, expires)| now < *expires && secret.is(token)) {
            return Err(LoginRefused::Link);
        }
        self.link = None;
        self.drop_expired(now);
        if self.sessions.len() >= SESSIONS_MAX
            && let Some(idlest) = (0..self.sessions.len()).min_by_key(|at| self.sessions[*at].used)
        {
            self.sessions.swap_remove(idlest);
        }
        let session = Session { cookie: Secret::random(), form_token: Secret::random(), begun: now, used: now };
        let cookie = session.cookie.clone();
        self.sessions.push(session);
        Ok(cookie)
    }

    fn count_attempt(&mut self, now: Instant) -> Result<(), LoginRefused> {
        let counted = *self.counted.get_or_insert(now);
        let over = now.saturating_duration_since(counted).as_secs() / ATTEMPT_EVERY.as_secs();
        let over = u32::try_from(over).unwrap_or(u32::MAX);
        if over > 0 {
            self.attempts = self.attempts.saturating_sub(over);
            self.counted = Some(now);
        }
        if self.attempts >= ATTEMPTS_MAX {
            return Err(LoginRefused::TooMany);
        }
        self.attempts += 1;
        Ok(())
    }

    fn drop_expired(&mut self, now: Instant) {
        let idle_max = self.idle_max;
        self.sessions.retain(|session| {
            now.saturating_duration_since(session.used) < idle_max
                && now.saturating_duration_since(session.begun) < SESSION_LIFE
        });
    }

    /// The session of a cookie: what its forms must bring along. `is_use`: a person does this, not the page by itself.
    pub(crate) fn session(&mut self, cookie: &str, now: Instant, is_use: bool) -> Option<Secret> {
        self.drop_expired(now);
        let session = self.sessions.iter_mut().find(|session| session.cookie.is(cookie))?;
        if is_use {
            session.used = now;
        }
        Some(session.form_token.clone())
    }

    /// Ends a session.
    pub(crate) fn log_out(&mut self, form_token: &Secret) {
        self.sessions.retain(|session| !session.form_token.is(form_token.reveal()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(100);

    #[test]
    fn a_link_is_good_once_for_a_while_and_until_there_is_another() {
        let (mut logins, now) = (Logins::new(IDLE), Instant::now());
        let first = logins.new_link(now);
        let second = logins.new_link(now);
        assert_eq!(logins.log_in(&first, now).unwrap_err(), LoginRefused::Link);
        let cookie = logins.log_in(&second, now).unwrap();
        assert_eq!(logins.log_in(&second, now).unwrap_err(), LoginRefused::Link);
        assert!(logins.session(cookie.reveal(), now, true).is_some());
        let third = logins.new_link(now);
        assert_eq!(logins.log_in(&third, now + LINK_LIFE).unwrap_err(), LoginRefused::Link);
        assert!(logins.log_in("", now).is_err() && logins.log_in(&third[..63], now).is_err());
    }

    #[test]
    fn a_session_ends_when_it_is_idle_old_or_logged_out() {
        let (mut logins, start) = (Logins::new(IDLE), Instant::now());
        let log_in = |logins: &mut Logins, now| {
            let link = logins.new_link(now);
            logins.log_in(&link, now).unwrap()
        };
        let cookie = log_in(&mut logins, start);
        // A page that refreshes itself does not keep it.
        assert!(logins.session(cookie.reveal(), start + IDLE / 2, false).is_some());
        assert!(logins.session(cookie.reveal(), start + IDLE, false).is_none());
        let mut now = start + 2 * IDLE;
        let cookie = log_in(&mut logins, now);
        let until = now + SESSION_LIFE;
        while now + IDLE / 2 < until {
            now += IDLE / 2;
            assert!(logins.session(cookie.reveal(), now, true).is_some());
        }
        assert!(logins.session(cookie.reveal(), until, true).is_none());
        let cookie = log_in(&mut logins, now);
        let token = logins.session(cookie.reveal(), now, true).unwrap();
        logins.log_out(&token);
        assert!(logins.session(cookie.reveal(), now, true).is_none());
    }

    #[test]
    fn attempts_and_sessions_are_bounded() {
        let (mut logins, now) = (Logins::new(IDLE), Instant::now());
        let link = logins.new_link(now);
        for _ in 0..ATTEMPTS_MAX {
            assert_eq!(logins.log_in("wrong", now).unwrap_err(), LoginRefused::Link);
        }
        assert_eq!(logins.log_in(&link, now).unwrap_err(), LoginRefused::TooMany);
        assert!(logins.log_in(&link, now + ATTEMPT_EVERY).is_ok(), "later it can be used");
        for second in 2..20 {
            let now = now + second * ATTEMPT_EVERY;
            let link = logins.new_link(now);
            logins.log_in(&link, now).unwrap();
            assert!(logins.sessions.len() <= SESSIONS_MAX);
        }
    }
}
