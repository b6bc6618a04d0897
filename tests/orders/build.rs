//! Copies the table and what it needs from `src`, so that `mod.rs` is a module in it. The copy
//! differs in two points: a table can be cloned, and each of the rules below can be left out.

use std::path::PathBuf;
use std::{env, fs, io};

/// The files of `src/lock` that are copied.
const COPIED: [&str; 15] = [
    "error",
    "key",
    "lease",
    "line",
    "permit",
    "prefixes",
    "slots",
    "store",
    "table",
    "table/holders",
    "table/leases",
    "table/look",
    "time",
    "token",
    "wakeup",
];

/// The modules of the copy. The table has no clock, so none is needed.
const MODULES: &str = r"
pub mod lock;
/// The parts of the operating system.
pub mod platform {
    /// Clocks.
    pub mod clock {
        /// No time.
        pub fn since_boot() -> std::time::Duration {
            std::time::Duration::ZERO
        }
    }
}
";

/// A text of the table that is another one in the copy. A file has it once.
struct Change {
    /// Below `src/lock`.
    file: &'static str,
    right: &'static str,
    /// What takes its place. `$Name` is true if the rule of that name is left out.
    planted: &'static str,
}

const fn change(file: &'static str, right: &'static str, planted: &'static str) -> Change {
    Change { file, right, planted }
}

const CHANGES: [Change; 18] = [
    change(
        "table.rs",
        "#[derive(Debug)]\npub struct Table",
        "#[derive(Clone, Debug)]\npub struct Table",
    ),
    change("line.rs", "#[derive(Debug, Default)]", "#[derive(Clone, Debug, Default)]"),
    change("line.rs", "#[derive(Debug)]\nstruct Joined", "#[derive(Clone, Debug)]\nstruct Joined"),
    change("table/holders.rs", "least.allows(units)", "$Room || least.allows(units)"),
    change(
        "table.rs",
        ".filter(|entry| entry.ends_at <= now);
        let over: Vec<_> = over.map(|entry| entry.fencing_token)",
        ".filter(|entry| entry.ends_at <= now && !$Time);
        let over: Vec<_> = over.map(|entry| entry.fencing_token)",
    ),
    change(
        "table/leases.rs",
        "let entry = Entry { owner: claim.owner.clone(), state: State::Heard, ..own };",
        "let mut entry = Entry { owner: claim.owner.clone(), state: State::Heard, ..own };
        if $RepeatNumber {
            self.take_out(&claim.key, entry.fencing_token);
            self.last_fencing_token += 1;
            let next = FencingToken::from_number(self.last_fencing_token);
            entry.fencing_token = next.expect(\"a few\");
        }",
    ),
    change(
        "table/leases.rs",
        "if claim.kept || own.state == State::Kept || !claim.keeps(own.share) {",
        "if !$RepeatPlain && (claim.kept || own.state == State::Kept) || !claim.keeps(own.share) {",
    ),
    change("table/leases.rs", "has == claim.named", "$ReplaceNamed || has == claim.named"),
    change(
        "table/leases.rs",
        "self.last_fencing_token = fencing_token.number();",
        "let fencing_token = match before {
            Some(before) if $ReplaceNumber => before.fencing_token,
            _ => fencing_token,
        };
        self.last_fencing_token = self.last_fencing_token.max(fencing_token.number());",
    ),
    change("table.rs", "=> handed == token,", "=> $Handed || handed == token,"),
    change("table.rs", "entry.state == State::Heard", "entry.state == State::Heard && !$Heard"),
    change(
        "table/leases.rs",
        "entry.ends_at.min(would_end_at)",
        "if $PutBack { entry.ends_at } else { entry.ends_at.min(would_end_at) }",
    ),
    change("line.rs", "&& until <= now", "&& until <= now && !$Reserved"),
    change(
        "table/leases.rs",
        "if entry.ends_at > ends_at {",
        "if entry.ends_at > ends_at && !$OnlyExtends {",
    ),
    change(
        "table.rs",
        "-> Renewed {\n        self.expire_and_hand_on(&of.key, now);",
        "-> Renewed {
        if !$NoRevival {
            self.expire_and_hand_on(&of.key, now);
        }",
    ),
    change(
        "table.rs",
        "_ if is_kept => return Renewed::Kept",
        "_ if is_kept && !$KeptAlone => return Renewed::Kept",
    ),
    change(
        "table.rs",
        "let own = self.entry_of(&of.key, &of.token)?;
        of.number.is_none_or(|number| number == own.fencing_token)",
        "let its = self.entry_of(&of.key, &of.token);
        let own = if $OwnToken { self.entries(&of.key).first()? } else { its? };
        ($OwnToken || $OnlyNamed || of.number.is_none_or(|number| number == own.fencing_token))",
    ),
    change(
        "line.rs",
        "let lapsed = self.handed.as_ref().is_some_and(|(_, until)| *until <= now);",
        "let lapsed = self.handed.as_ref().is_some_and(|(_, until)| *until <= now && !$Lapses);",
    ),
];

fn main() -> io::Result<()> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let copy = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("src");
    let sources = here.join("../../src/lock");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-changed={}", here.join("build.rs").display());
    fs::create_dir_all(copy.join("lock/table"))?;
    fs::write(copy.join("lib.rs"), MODULES)?;
    let modules = COPIED.iter().filter(|name| !name.contains('/'));
    let modules: Vec<_> = modules.map(|name| format!("pub mod {name};")).collect();
    fs::write(copy.join("lock/mod.rs"), format!("//! The domain.\n{}\n", modules.join("\n")))?;
    for name in COPIED {
        let file = format!("{name}.rs");
        let text =
            fs::read_to_string(sources.join(&file))?.replace("#[cfg(test)]", "#[cfg(false)]");
        let text = changed(&file, text);
        // Modules below these two see their private fields.
        let below = match name {
            "table" => format!("#[path = {:?}]\npub(crate) mod orders;\n", here.join("mod.rs")),
            "line" => format!("#[path = {:?}]\nmod seen;\n", here.join("seen.rs")),
            _ => String::new(),
        };
        fs::write(copy.join("lock").join(file), format!("{text}\n{below}"))?;
    }
    Ok(())
}

/// The text of a file with the changes to it.
fn changed(file: &str, mut text: String) -> String {
    for Change { right, planted, .. } in CHANGES.iter().filter(|change| change.file == file) {
        let places = text.matches(right).count();
        assert!(
            places == 1,
            "src/lock/{file} has `{right}` in {places} places: say in {} which text is the rule",
            file!()
        );
        let mut parts = planted.split('$');
        let mut planted = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            planted += &format!("crate::lock::table::orders::Rule::{name}.is_left_out(){rest}");
        }
        text = text.replace(right, &planted);
    }
    text
}
