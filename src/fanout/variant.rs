//! Owns what is known of one variant while it is sent: its serialised message, and what answers prove about it.
//! Must never know: which recipients there are.

use crate::domain::batch::FanoutJob;
use crate::domain::catalogue::Catalogue;
use crate::domain::derived::Source;
use crate::domain::recipient::{Locale, Platform};
use crate::fcm::message::Template;

/// Answers after which a variant that was only ever refused stops.
pub const STOP_AFTER: u32 = 20;

/// One rendered text for one platform.
#[derive(Debug)]
pub struct Variant {
    /// `type/locale/platform`, as kept with failures.
    pub name: String,
    /// The serialised message; `None` when this build cannot make it.
    pub template: Option<Template>,
    /// FCM accepted it for some device: a refusal without a field is about the device then.
    accepted: bool,
    refused: u32,
    answered: u32,
}

impl Variant {
    /// Renders and serialises the variant. A type that left the catalogue, or a message that does not serialise,
    /// gives a variant without template: its recipients end as `internal`.
    #[must_use]
    pub fn build(job: &FanoutJob, catalogue: &Catalogue, locale: &str, platform: Platform) -> Self {
        if job.origin.source == Source::Devices {
            let (name, template) = (Self::name(job, locale, platform), Some(Template::probe(platform)));
            return Self { name, template, accepted: false, refused: 0, answered: 0 };
        }
        let event = &job.event;
        let template = catalogue.get(&event.kind).and_then(|kind| {
            let text = kind.render(locale, event);
            let under = |key: &str| Template::keyed(event, kind, &text, (platform, key));
            let own = || under(&kind.collapse_key_under(event, job.origin.root.as_ref().unwrap_or(&event.id)));
            // Beside what is on the phone rather than not at all, should the other key be the few bytes too long.
            let made = job.origin.key.as_deref().map_or_else(own, |key| under(key).or_else(|_| own()));
            if let Err(error) = &made {
                tracing::error!(target: "fanfare::fanout", fanout_id = %job.id, locale, platform = %platform, %error, "variant does not serialise");
            }
            made.ok()
        });
        let name = Self::name(job, locale, platform);
        Self { name, template, accepted: false, refused: 0, answered: 0 }
    }

    /// `type/locale/platform`.
    #[must_use]
    pub fn name(job: &FanoutJob, locale: &str, platform: Platform) -> String {
        format!("{}/{locale}/{platform}", job.event.kind)
    }

    /// The locale whose text a device reads.
    #[must_use]
    pub fn locale<'a>(job: &FanoutJob, catalogue: &'a Catalogue, wanted: &Locale) -> &'a str {
        let default = catalogue.default_locale.as_str();
        catalogue.get(&job.event.kind).map_or(default, |kind| kind.locale_for(wanted, default))
    }

    /// Notes an acceptance; `true` when it is the first.
    pub const fn note_accepted(&mut self) -> bool {
        self.answered += 1;
        !std::mem::replace(&mut self.accepted, true)
    }

    /// Notes an answer that refused the message, with or without a field.
    pub const fn note_refused(&mut self) {
        self.answered += 1;
        self.refused += 1;
    }

    /// Notes any other meaningful answer.
    pub const fn note_other(&mut self) {
        self.answered += 1;
    }

    /// Whether FCM accepted it for some device.
    #[must_use]
    pub const fn accepted(&self) -> bool {
        self.accepted
    }

    /// Whether its first [`STOP_AFTER`] answers all refused the message: nobody else needs to be asked.
    #[must_use]
    pub const fn stopped(&self) -> bool {
        !self.accepted && self.refused >= STOP_AFTER && self.refused == self.answered
    }
}
