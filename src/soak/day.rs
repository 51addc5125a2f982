//! Owns the day that is played: matches with kick-off times, what happens in them and when, how many follow each.
//! Must never know: clocks and services. The same seed is the same day.

use super::dice::Dice;

/// A day from the first line-ups to the last whistle, in minutes of the day that is compressed.
const DAY_MIN: u64 = 660;

/// Most posts per second of the day.
const POSTS_PER_S: f64 = 2.0;

/// Kick-offs, in minutes of the day, and the share of matches that begin there.
const KICK_OFFS: [(u64, f64); 4] = [(60, 0.12), (210, 0.5), (360, 0.13), (510, 0.25)];

/// Once in every match, minutes after kick-off.
const FIXED: [(&str, i64); 5] =
    [("lineups", -55), ("kick_off", 0), ("half_time", 47), ("second_half", 62), ("full_time", 110)];

/// How often in a match on average.
const RATES: [(&str, f64); 12] = [
    ("corner", 10.0),
    ("substitution", 6.0),
    ("yellow_card", 3.5),
    ("goal", 2.6),
    ("injury", 0.8),
    ("var_review", 0.5),
    ("penalty_awarded", 0.3),
    ("penalty_goal", 0.22),
    ("red_card", 0.15),
    ("own_goal", 0.1),
    ("penalty_missed", 0.07),
    ("second_yellow_card", 0.06),
];

/// One match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixture {
    /// `m3`.
    pub id: String,
    /// Into the day, ms.
    pub kick_off_ms: u64,
    /// Devices that follow one of the teams.
    pub audience: u32,
    /// Number of the first of them among all devices.
    pub first: u32,
}

/// How a post stands to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It happened.
    News,
    /// The post with this number again, to the letter.
    Repeat(usize),
    /// The post with this number under another id.
    SameNews(usize),
    /// What it says of the post with this number is that it was wrong: `replace` or `retract`.
    Corrects(usize, &'static str),
}

/// One call of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// Into the day, ms.
    pub at_ms: u64,
    /// Number of the match.
    pub fixture: usize,
    /// Event id.
    pub id: String,
    /// Event type.
    pub kind: &'static str,
    /// Of the match.
    pub minute: u32,
    /// How it stands to others.
    pub what: What,
}

/// A day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Day {
    /// Its length, ms.
    pub length_ms: u64,
    /// Its matches.
    pub fixtures: Vec<Fixture>,
    /// In the order they are posted.
    pub posts: Vec<Post>,
}

impl Day {
    /// The day of this seed, so long, with so many sends per second on average. In the afternoon, when most matches are played
    /// at once, there are several times as many.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub fn plan(seed: u64, length_ms: u64, sends_per_s: f64) -> Self {
        let mut dice = Dice::new(seed, "day");
        let seconds = length_ms as f64 / 1000.0;
        let matches = (4 + length_ms / 15_000).min(40);
        let usual: f64 = RATES.iter().map(|(_, mean)| mean).sum();
        let room = (POSTS_PER_S * seconds / matches as f64 - FIXED.len() as f64) / usual;
        let mut planner = Planner { length_ms, thin: room.clamp(0.15, 1.0), posts: Vec::new() };
        let mut fixtures = Vec::new();
        for n in 0..matches {
            let kick_off = kick_off(&mut dice, n as f64 / matches as f64);
            planner.play(&mut dice, fixtures.len(), kick_off);
            let kick_off_ms = planner.ms(kick_off);
            fixtures.push(Fixture { id: format!("m{n}"), kick_off_ms, audience: 0, first: 0 });
        }
        let mut posts = planner.posts;
        follow(&mut dice, &mut fixtures, &posts, sends_per_s * seconds);
        echo(&mut dice, &mut posts, length_ms);
        Self { length_ms, fixtures, posts: in_order(posts) }
    }

    /// All devices.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.fixtures.iter().map(|fixture| fixture.audience).sum()
    }
}

/// Minutes into the day.
fn kick_off(dice: &mut Dice, share: f64) -> u64 {
    let mut sum = 0.0;
    let slot = KICK_OFFS.iter().find(|(_, part)| {
        sum += part;
        share < sum
    });
    slot.map_or(KICK_OFFS[1].0, |(minute, _)| *minute) + dice.roll(0, 4)
}

struct Planner {
    length_ms: u64,
    thin: f64,
    posts: Vec<Post>,
}

impl Planner {
    fn ms(&self, minute: u64) -> u64 {
        minute * self.length_ms / DAY_MIN
    }

    /// All that happens in one match.
    fn play(&mut self, dice: &mut Dice, fixture: usize, kick_off: u64) {
        for (kind, after) in FIXED {
            self.happens(dice, (fixture, kind), (kick_off, after));
        }
        for (kind, mean) in RATES {
            for _ in 0..dice.poisson(mean * self.thin) {
                let played = i64::try_from(dice.roll(1, 91)).unwrap_or(1);
                // The second half begins after the break.
                let after = if played > 45 { played + 17 } else { played };
                self.happens(dice, (fixture, kind), (kick_off, after));
            }
        }
    }

    fn happens(&mut self, dice: &mut Dice, (fixture, kind): (usize, &'static str), (kick_off, after): (u64, i64)) {
        let minute = kick_off.saturating_add_signed(after);
        let within = dice.roll(0, self.ms(1).max(1));
        let id = format!("news-{}", self.posts.len());
        let played = u32::try_from(after.clamp(0, 110)).unwrap_or(0);
        let at_ms = self.ms(minute) + within;
        self.posts.push(Post { at_ms, fixture, id, kind, minute: played, what: What::News });
    }
}

/// Gives every match its followers: few most of them, some a large part of all.
fn follow(dice: &mut Dice, fixtures: &mut [Fixture], posts: &[Post], sends: f64) {
    let weights: Vec<f64> = fixtures.iter().map(|_| dice.heavy().min(60.0)).collect();
    let posted: f64 = posts.iter().map(|post| weights[post.fixture]).sum();
    let mut first = 0;
    for (fixture, weight) in fixtures.iter_mut().zip(weights) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and small")]
        let audience = (sends * weight / posted.max(1.0)).clamp(1.0, 1e7) as u32;
        (fixture.audience, fixture.first) = (audience, first);
        first += audience;
    }
}

/// What callers do beside telling news: say it twice, tell it from two sources, correct it.
fn echo(dice: &mut Dice, posts: &mut Vec<Post>, length_ms: u64) {
    for of in 0..posts.len() {
        let first = posts[of].clone();
        let goal = first.kind == "goal";
        let (id, kind, after, what) = if goal && dice.chance(0.15) {
            let (mode, kind) = if dice.chance(0.5) { ("replace", "goal") } else { ("retract", "goal_disallowed") };
            (format!("correction-{of}"), kind, dice.roll(700, 4_000), What::Corrects(of, mode))
        } else if dice.chance(0.05) {
            (first.id.clone(), first.kind, dice.roll(50, 2_000), What::Repeat(of))
        } else if dice.chance(0.04) {
            (format!("again-{of}"), first.kind, dice.roll(50, 1_500), What::SameNews(of))
        } else {
            continue;
        };
        let at_ms = (first.at_ms + after).min(length_ms);
        posts.push(Post { at_ms, id, kind, what, ..first });
    }
}

/// Sorted by time; numbers of other posts are kept right.
fn in_order(posts: Vec<Post>) -> Vec<Post> {
    let mut order: Vec<usize> = (0..posts.len()).collect();
    // What refers to another post is behind it here, and a stable sort leaves it so.
    order.sort_by_key(|i| posts[*i].at_ms);
    let mut now = vec![0; posts.len()];
    for (at, was) in order.iter().enumerate() {
        now[*was] = at;
    }
    let renumbered = |what: What| match what {
        What::News => What::News,
        What::Repeat(of) => What::Repeat(now[of]),
        What::SameNews(of) => What::SameNews(now[of]),
        What::Corrects(of, mode) => What::Corrects(now[of], mode),
    };
    order.iter().map(|was| Post { what: renumbered(posts[*was].what), ..posts[*was].clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE_MINUTES: u64 = 180_000;

    #[test]
    fn the_same_seed_is_the_same_day_and_another_seed_another() {
        assert_eq!(Day::plan(7, THREE_MINUTES, 90.0), Day::plan(7, THREE_MINUTES, 90.0));
        assert_ne!(Day::plan(7, THREE_MINUTES, 90.0), Day::plan(8, THREE_MINUTES, 90.0));
    }

    #[test]
    fn everything_happens_within_the_day_and_in_order() {
        for seed in 0..50 {
            let day = Day::plan(seed, THREE_MINUTES, 90.0);
            assert!(day.posts.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
            assert!(day.posts.iter().all(|post| post.at_ms <= day.length_ms), "{:?}", day.posts.last());
            let by_kind = |kind: &str| day.posts.iter().filter(|p| p.kind == kind && p.what == What::News).count();
            assert_eq!(by_kind("full_time"), day.fixtures.len(), "every match ends once");
            assert!(by_kind("corner") > by_kind("goal"));
        }
    }

    #[test]
    fn what_refers_to_another_post_comes_after_it_and_is_of_the_same_match() {
        let mut seen = [0; 3];
        for seed in 0..50 {
            let day = Day::plan(seed, THREE_MINUTES, 90.0);
            for (at, post) in day.posts.iter().enumerate() {
                let (of, which) = match post.what {
                    What::News => continue,
                    What::Repeat(of) => (of, 0),
                    What::SameNews(of) => (of, 1),
                    What::Corrects(of, _) => (of, 2),
                };
                seen[which] += 1;
                assert!(of < at && day.posts[of].what == What::News && day.posts[of].fixture == post.fixture);
                assert_eq!(which == 0, day.posts[of].id == post.id);
            }
        }
        assert!(seen.iter().all(|n| *n > 20), "{seen:?}");
    }

    #[test]
    fn audiences_have_a_heavy_tail_and_add_up_to_the_load() {
        let day = Day::plan(7, 600_000, 90.0);
        let mut sizes: Vec<u32> = day.fixtures.iter().map(|f| f.audience).collect();
        sizes.sort_unstable();
        assert!(sizes[sizes.len() - 1] > 8 * sizes[sizes.len() / 2], "{sizes:?}");
        let news = day.posts.iter().filter(|post| post.what == What::News);
        let sends: f64 = news.map(|post| f64::from(day.fixtures[post.fixture].audience)).sum();
        let share = sends / (300.0 * 600.0);
        assert!((0.2..0.35).contains(&share), "{share}");
        let mut next = 0;
        for fixture in &day.fixtures {
            assert_eq!(fixture.first, next, "no device is in two audiences");
            next += fixture.audience;
        }
    }

    #[test]
    fn a_short_day_has_all_that_a_long_one_has_and_less_of_it() {
        let day = Day::plan(1, 15_000, 60.0);
        assert!(day.fixtures.len() >= 4 && day.posts.len() < 90, "{} {}", day.fixtures.len(), day.posts.len());
        assert!(day.devices() > 50, "{}", day.devices());
    }
}
