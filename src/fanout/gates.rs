//! Owns what may hold every launch: the lease, the drain, a project pause, the breaker, and refused credentials.
//! Must never know: recipients. All are looked at with slot, stream and grant at hand.

use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::{Breaker, Ticket};
use crate::clock::Boot;
use crate::domain::outcome::{Cause, CredentialFault};
use crate::domain::recipient::Platform;
use crate::mutant;

/// A credential that served somebody this recently works: a refusal is about the recipient then.
const WORKS_FOR: Duration = Duration::from_secs(10);
/// So many refusals in a row shut the gate although it served somebody that recently: a credential can break.
const REFUSALS: u32 = 16;
/// A refused access token is expected to be replaced within this time.
const REFRESH_TIME: Duration = Duration::from_secs(1);
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
/// As long as a breaker stays open, and for the same reason: it is what a goal may wait for nothing once the role is back,
/// and one refused request in ten seconds costs nobody anything.
const LAST_BACKOFF: Duration = Duration::from_secs(10);

/// The gate of one credential: while it serves nobody, one probe per back-off.
#[derive(Debug, Clone, Copy)]
pub struct AuthGate {
    shut_until: Option<Instant>,
    backoff: Duration,
    probing: bool,
    worked: Option<Instant>,
    /// Refusals since it last served somebody.
    refusals: u32,
}

impl Default for AuthGate {
    fn default() -> Self {
        Self { shut_until: None, backoff: FIRST_BACKOFF, probing: false, worked: None, refusals: 0 }
    }
}

impl AuthGate {
    /// Until when nothing may be launched; `None` = now is fine.
    #[must_use]
    pub fn shut(&self, now: Instant) -> Option<Instant> {
        let until = self.shut_until?;
        if self.probing { Some(now + self.backoff) } else { (until > now).then_some(until) }
    }

    const fn launched(&mut self) {
        self.probing = self.shut_until.is_some();
    }

    fn worked(&mut self, now: Instant) {
        *self = Self { worked: Some(now), ..Self::default() };
    }

    /// An attempt that says nothing about the credential.
    fn neutral(&mut self, now: Instant) {
        if std::mem::take(&mut self.probing) {
            self.shut_until = Some(now + self.backoff);
        }
    }

    fn refused(&mut self, now: Instant) {
        self.refusals += 1;
        let recently = self.works(now) && self.refusals < REFUSALS;
        if recently || (self.shut_until.is_some() && !self.probing) {
            return;
        }
        self.probing = false;
        self.shut_until = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(LAST_BACKOFF);
    }

    /// Something has changed that may mend it: the next launch finds out, now.
    fn look_again(&mut self, now: Instant) {
        if self.shut_until.is_some() {
            (self.shut_until, self.backoff, self.probing) = (Some(now), FIRST_BACKOFF, false);
        }
    }

    /// Refusals since it last served somebody.
    #[must_use]
    pub const fn refusals(&self) -> u32 {
        self.refusals
    }

    /// Time until the next probe; zero when it is not shut.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.shut_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Whether it served somebody lately.
    #[must_use]
    pub fn works(&self, now: Instant) -> bool {
        self.worked.is_some_and(|t| now.saturating_duration_since(t) < WORKS_FOR)
    }
}

/// The last time during which a refused credential held everybody in hand, database ms. A chunk can be claimed long after its
/// deadline, when hands were full; it ends as those did that were in hand then.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spell {
    span: Option<(i64, i64)>,
    on: bool,
}

/// A spell goes on over so long with nobody in hand, ms: chunks that are over already come one after the other.
const MOMENT_MS: i64 = 5_000;

impl Spell {
    /// Whether the credential is refused now, and anybody is there to be held by it.
    pub fn note(&mut self, refused: bool, anybody: bool, now_ms: i64) {
        if refused && anybody {
            // The database's clock may step back: what it says from then on belongs to the spell too.
            let from = self.span.filter(|_| self.on).map_or(now_ms, |(from, _)| from.min(now_ms));
            self.span = Some((from, now_ms));
        }
        let lately = self.span.is_some_and(|(_, to)| now_ms - to <= MOMENT_MS);
        self.on = refused && (anybody || (self.on && lately));
    }

    /// Whether it held then.
    #[must_use]
    pub fn held_at(&self, at_ms: i64) -> bool {
        self.span.is_some_and(|(from, to)| (from..=to).contains(&at_ms))
    }
}

/// Why nothing is launched now, and when to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shut {
    /// Kept with whoever expires meanwhile.
    pub cause: Cause,
    /// `None`: something will tell.
    pub until: Option<Instant>,
}

/// What one attempt said of the credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credit {
    /// It was served.
    Worked,
    /// It was refused.
    Refused(CredentialFault),
    /// Nothing.
    Silent,
}

/// All gates.
#[derive(Debug)]
pub struct Gates {
    /// The breaker of this instance.
    pub breaker: Breaker,
    /// Nothing is launched any more.
    pub draining: bool,
    lease: Boot,
    pause: Option<Instant>,
    rejected: Option<(u64, Instant)>,
    /// Generation of the access token seen last.
    token: Option<u64>,
    project: AuthGate,
    platforms: [AuthGate; Platform::ALL.len()],
}

impl Gates {
    /// Shut until a lease is given.
    #[must_use]
    pub fn new(breaker: Breaker) -> Self {
        Self {
            breaker,
            draining: false,
            lease: Boot::now(),
            pause: None,
            rejected: None,
            token: None,
            project: AuthGate::default(),
            platforms: Default::default(),
        }
    }

    /// The lease is trusted until then.
    pub const fn renew(&mut self, until: Boot) {
        self.lease = until;
    }

    /// Whether the instance lease is trusted now.
    #[must_use]
    pub fn leased(&self) -> bool {
        mutant::on("lease_unchecked") || Boot::now() < self.lease
    }

    /// Holds everything until then; never shortens a pause.
    pub fn pause(&mut self, until: Instant) {
        self.pause = Some(self.pause.map_or(until, |t| t.max(until)));
    }

    /// The access token of this generation was refused: nothing leaves with it until there is another, or for
    /// `REFRESH_TIME`. A 401 can also be about one device, and then no other token comes.
    pub fn reject(&mut self, generation: u64, now: Instant) {
        if self.rejected.is_none_or(|(known, _)| known < generation) {
            self.rejected = Some((generation, now + REFRESH_TIME));
        }
    }

    /// The access token there is now. Another one than before may be served where the last was refused: no back-off of
    /// the project's gate is waited for.
    pub fn see_token(&mut self, generation: Option<u64>, now: Instant) {
        if generation.is_some() && generation != self.token {
            self.token = generation;
            self.project.look_again(now);
        }
    }

    /// Until when a token of this generation must not be used.
    fn refreshing(&self, generation: u64, now: Instant) -> Option<Instant> {
        self.rejected.filter(|(refused, until)| *refused == generation && *until > now).map(|(_, until)| until)
    }

    /// What holds every launch now, if anything. `token` = the access token's generation, if there is one.
    #[must_use]
    pub fn shut(&self, now: Instant, token: Option<u64>) -> Option<Shut> {
        if self.draining || !self.leased() {
            return Some(Shut { cause: Cause::Hold, until: None });
        }
        if let Some(until) = self.pause.filter(|t| *t > now) {
            return Some(Shut { cause: Cause::Throttle, until: Some(until) });
        }
        let Some(generation) = token else {
            return Some(Shut { cause: Cause::Credential, until: None });
        };
        self.refreshing(generation, now)
            .or_else(|| self.project.shut(now))
            .map(|until| Shut { cause: Cause::Credential, until: Some(until) })
    }

    /// Whether the project's credential served nobody since it was refused: the next launch is a probe.
    #[must_use]
    pub const fn refused(&self) -> bool {
        self.project.shut_until.is_some()
    }

    /// The same of a platform's credential.
    #[must_use]
    pub const fn platform_refused(&self, platform: Platform) -> bool {
        self.platforms[platform as usize].shut_until.is_some()
    }

    /// The gates of the project's credential and of every platform's, in the order of [`Platform::ALL`].
    pub fn credentials(&self) -> impl Iterator<Item = &AuthGate> {
        std::iter::once(&self.project).chain(&self.platforms)
    }

    /// Until when a platform's credential holds its recipients.
    #[must_use]
    pub fn platform_shut(&self, platform: Platform, now: Instant) -> Option<Instant> {
        self.platforms[platform as usize].shut(now)
    }

    /// Notes a launch.
    pub fn launched(&mut self, platform: Platform, now: Instant) -> Ticket {
        self.project.launched();
        self.platforms[platform as usize].launched();
        self.breaker.launch(now)
    }

    /// Notes what an attempt said of the credentials.
    pub fn note(&mut self, credit: Credit, platform: Platform, now: Instant) {
        let own = &mut self.platforms[platform as usize];
        match credit {
            Credit::Worked => {
                own.worked(now);
                self.project.worked(now);
            }
            Credit::Refused(CredentialFault::Platform) => {
                own.refused(now);
                self.project.worked(now);
            }
            Credit::Refused(_) => {
                own.neutral(now);
                self.project.refused(now);
            }
            Credit::Silent => {
                own.neutral(now);
                self.project.neutral(now);
            }
        }
    }

    /// When the credential behind a fault last served somebody.
    #[must_use]
    pub const fn worked(&self, fault: CredentialFault, platform: Platform) -> Option<Instant> {
        match fault {
            CredentialFault::Platform => self.platforms[platform as usize].worked,
            CredentialFault::Project | CredentialFault::AccessToken => self.project.worked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerSettings;

    fn gates() -> Gates {
        let mut gates = Gates::new(Breaker::new(BreakerSettings::default()));
        gates.renew(Boot::now().plus(Duration::from_secs(60)));
        gates
    }

    const PROJECT: Credit = Credit::Refused(CredentialFault::Project);

    #[tokio::test(start_paused = true)]
    async fn no_lease_no_launch() {
        let gates = Gates::new(Breaker::new(BreakerSettings::default()));
        assert_eq!(gates.shut(Instant::now(), Some(1)).unwrap().cause, Cause::Hold);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_project_is_probed_once_per_back_off() {
        let mut gates = gates();
        let now = Instant::now();
        for _ in 0..32 {
            gates.note(PROJECT, Platform::Android, now);
        }
        let shut = gates.shut(now, Some(1)).unwrap();
        assert_eq!(
            (shut.cause, shut.until),
            (Cause::Credential, Some(now + FIRST_BACKOFF)),
            "32 answers are one back-off"
        );
        let later = now + FIRST_BACKOFF;
        assert_eq!((gates.shut(later, Some(1)), gates.refused()), (None, true));
        let _probe = gates.launched(Platform::Android, later);
        assert!(gates.shut(later, Some(1)).is_some(), "one probe");
        gates.note(PROJECT, Platform::Android, later);
        assert_eq!(gates.shut(later, Some(1)).unwrap().until, Some(later + FIRST_BACKOFF * 2));
        let again = later + FIRST_BACKOFF * 2;
        let _probe = gates.launched(Platform::Android, again);
        gates.note(Credit::Worked, Platform::Android, again);
        assert_eq!((gates.shut(again, Some(1)), gates.refused()), (None, false));
    }

    /// Probes until `until`, refused each time; when the last one left.
    fn refuse(gates: &mut Gates, from: Instant, until: Instant) -> Vec<Duration> {
        let (mut now, mut waits) = (from, Vec::new());
        while let Some(shut) = gates.shut(now, Some(1)).and_then(|shut| shut.until).filter(|at| *at <= until) {
            waits.push(shut - now);
            now = shut;
            let _probe = gates.launched(Platform::Android, now);
            gates.note(PROJECT, Platform::Android, now);
        }
        waits
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_that_is_given_back_is_noticed_within_ten_seconds_however_long_it_was_missing() {
        let mut gates = gates();
        let now = Instant::now();
        gates.note(PROJECT, Platform::Android, now);
        let waits = refuse(&mut gates, now, now + Duration::from_secs(3600));
        let seconds: Vec<u64> = waits.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds[..6], [1, 2, 4, 8, 10, 10]);
        assert!(waits.iter().all(|wait| *wait <= LAST_BACKOFF));
        assert_eq!(waits.len() as u64, 4 + (3600 - 15) / 10, "one probe each");
    }

    #[tokio::test(start_paused = true)]
    async fn another_access_token_is_tried_at_once_and_the_same_one_is_not() {
        let mut gates = gates();
        let now = Instant::now();
        gates.see_token(Some(1), now);
        gates.note(Credit::Refused(CredentialFault::AccessToken), Platform::Android, now);
        let waits = refuse(&mut gates, now, now + Duration::from_secs(30));
        let now = now + waits.iter().sum::<Duration>();
        for generation in [Some(1), None, Some(1)] {
            gates.see_token(generation, now);
            assert!(gates.shut(now, Some(1)).is_some(), "{generation:?} is no news");
        }
        let later = now + Duration::from_millis(1);
        gates.see_token(Some(2), later);
        assert_eq!((gates.shut(later, Some(2)), gates.refused()), (None, true), "a probe, now");
        let _probe = gates.launched(Platform::Android, later);
        assert!(gates.shut(later, Some(2)).is_some(), "and no more than one");
        gates.note(PROJECT, Platform::Android, later);
        assert_eq!(gates.shut(later, Some(2)).unwrap().until, Some(later + FIRST_BACKOFF));
    }

    #[test]
    fn a_spell_is_remembered_from_its_first_moment_to_its_last_and_then_the_next_one() {
        let mut spell = Spell::default();
        assert!(!spell.held_at(0));
        for (holds, at) in [(true, 10), (true, 20), (false, 21), (false, 30)] {
            spell.note(holds, true, at);
        }
        assert_eq!([9, 10, 15, 20, 21].map(|at| spell.held_at(at)), [false, true, true, true, false]);
        spell.note(true, true, 40);
        spell.note(true, true, 50);
        assert_eq!([15, 39, 45].map(|at| spell.held_at(at)), [false, false, true]);
    }

    #[test]
    fn a_spell_outlives_a_moment_with_nobody_in_hand_but_no_more() {
        let mut spell = Spell::default();
        spell.note(true, true, 10);
        spell.note(true, false, 11);
        spell.note(true, true, 4_000);
        assert!(spell.held_at(10) && spell.held_at(2_000));
        spell.note(true, false, 4_001);
        spell.note(true, false, 9_001);
        spell.note(true, true, 9_002);
        assert_eq!(
            [4_000, 9_001, 9_002].map(|at| spell.held_at(at)),
            [false, false, true],
            "nobody asked for too long"
        );
        spell.note(true, false, 9_003);
        spell.note(false, false, 9_004);
        spell.note(true, true, 9_005);
        assert!(!spell.held_at(9_002), "it was served in between");
    }

    #[test]
    fn a_spell_goes_on_where_the_clock_steps_back_to() {
        let mut spell = Spell::default();
        for at in [100, 110, 50, 60] {
            spell.note(true, true, at);
        }
        assert_eq!([49, 50, 55, 60, 61].map(|at| spell.held_at(at)), [false, true, true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_token_opens_nothing_that_was_not_shut() {
        let mut gates = gates();
        let now = Instant::now();
        gates.see_token(Some(1), now);
        assert_eq!((gates.shut(now, Some(1)), gates.refused()), (None, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_beside_successes_shuts_nothing() {
        let mut gates = gates();
        let now = Instant::now();
        gates.note(Credit::Worked, Platform::Ios, now);
        gates.note(PROJECT, Platform::Ios, now);
        assert_eq!(gates.shut(now, Some(1)), None);
        assert_eq!(gates.worked(CredentialFault::Project, Platform::Web), Some(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_credential_that_breaks_is_given_sixteen_refusals() {
        let mut gates = gates();
        let now = Instant::now();
        gates.note(Credit::Worked, Platform::Ios, now);
        for _ in 1..REFUSALS {
            gates.note(PROJECT, Platform::Ios, now);
        }
        assert_eq!(gates.shut(now, Some(1)), None);
        gates.note(PROJECT, Platform::Ios, now);
        assert!(gates.shut(now, Some(1)).is_some() && gates.refused());
        let later = now + FIRST_BACKOFF;
        let _probe = gates.launched(Platform::Ios, later);
        gates.note(Credit::Worked, Platform::Ios, later);
        gates.note(PROJECT, Platform::Ios, later);
        assert_eq!(gates.shut(later, Some(1)), None, "the count starts again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_platforms_key_holds_that_platform_only() {
        let mut gates = gates();
        let now = Instant::now();
        gates.note(Credit::Refused(CredentialFault::Platform), Platform::Ios, now);
        assert!(gates.platform_shut(Platform::Ios, now).is_some());
        assert_eq!(gates.platform_shut(Platform::Android, now), None);
        assert_eq!(gates.shut(now, Some(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_waits_for_another_generation() {
        let mut gates = gates();
        let now = Instant::now();
        gates.reject(7, now);
        gates.reject(7, now + Duration::from_millis(900));
        assert_eq!(gates.shut(now, Some(7)).unwrap().cause, Cause::Credential);
        assert_eq!(gates.shut(now, None).unwrap().cause, Cause::Credential);
        assert_eq!(gates.shut(now, Some(8)), None);
        assert_eq!(gates.shut(now + REFRESH_TIME, Some(7)), None, "it was about one device");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_never_shortened() {
        let mut gates = gates();
        let now = Instant::now();
        gates.pause(now + Duration::from_secs(20));
        gates.pause(now + Duration::from_secs(3));
        assert_eq!(gates.shut(now, Some(1)).unwrap().until, Some(now + Duration::from_secs(20)));
    }
}
