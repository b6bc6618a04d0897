//! The layers and the style of CONTRIBUTING.md, each rule a test.
//!
//! A rule is a function from files to faults. The test of its name runs it on the files of this
//! package; the tests of planted faults run it on files that break it, so no rule is one that
//! cannot fail. Rules read text: a macro could hide something from them.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "tidy/deploy.rs"]
mod deploy;
#[path = "tidy/kubernetes.rs"]
mod kubernetes;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/metrics.rs"]
mod metrics;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/record.rs"]
mod record;
#[path = "tidy/release.rs"]
mod release;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/scripts.rs"]
mod scripts;
#[path = "tidy/settings.rs"]
mod settings;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/style.rs"]
mod style;
#[path = "tidy/surface.rs"]
mod surface;
#[path = "tidy/tangles.rs"]
mod tangles;
