#![no_main]

#[path = "../inputs/settings.rs"]
mod settings;

libfuzzer_sys::fuzz_target!(|input: &[u8]| settings::judge(input));
