//! The pages for people, and the files that build and run the service: what they name is there.

use std::collections::BTreeSet;
use std::path::Path;

use crate::settings::documented;
use crate::source::{File, assert_found, assert_none, files, is_word};

/// The most columns of a line of text, and of a row of a table.
const MAX_COLUMNS: usize = 100;
const MAX_ROW: usize = 400;

/// Files that set variables of the service, by directory and ending.
const DEPLOYED: [(&str, &str); 3] =
    [("deploy/systemd", "service"), ("deploy/packages", "toml"), ("deploy/kubernetes", "yaml")];

/// A variable in a page that stands for any.
const PLACEHOLDER: &str = "LOCKKEEPER_SECTION_KEY";

#[test]
fn every_variable_in_a_page_is_one_that_is_read() {
    let known = variables();
    let mut all = pages();
    all.extend(["Dockerfile", "compose.yaml", "Makefile"].map(File::read));
    for (directory, ending) in DEPLOYED {
        all.extend(files(directory, ending));
    }
    assert_none(&all.iter().flat_map(|page| strange_variables(page, &known)).collect::<Vec<_>>());
}

#[test]
fn every_command_in_a_page_is_there() {
    let commands = Commands::read();
    let mut all = pages();
    all.extend(["Dockerfile", "deploy/systemd/lockkeeper.service"].map(File::read));
    all.extend(files(".github", "yml"));
    assert_none(&all.iter().flat_map(|page| commands.missing(page)).collect::<Vec<_>>());
}

#[test]
fn every_link_in_a_page_leads_to_a_file() {
    let there = |path: &str| Path::new(path).exists();
    assert_none(&pages().iter().flat_map(|page| dead_links(page, there)).collect::<Vec<_>>());
}

#[test]
fn a_line_of_a_page_has_at_most_100_columns_and_a_row_400() {
    assert_none(&pages().iter().flat_map(wide_lines).collect::<Vec<_>>());
}

#[test]
fn every_drop_in_the_sources_is_in_the_table_of_the_architecture() {
    let page = File::read("ARCHITECTURE.md");
    let rows: Vec<_> = files("src", "rs").iter().flat_map(drops).collect();
    assert!(rows.len() >= 10, "only {rows:?}");
    assert_none(&rows.into_iter().filter(|row| !page.text.contains(row)).collect::<Vec<_>>());
}

#[test]
fn every_command_of_the_makefile_is_there() {
    let there = |path: &str| Path::new(path).exists();
    let makefile = File::read("Makefile");
    assert_none(&broken_targets(&makefile, &File::read("Cargo.toml"), there));
    let ci = File::read(".ci/run");
    let known = targets(&makefile);
    let called = ci.text.lines().filter_map(|line| line.strip_prefix("make "));
    assert!(called.clone().count() > 0, "the CI makes nothing");
    assert_none(&called.filter(|one| !known.contains(*one)).map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn every_file_that_the_sources_include_reaches_the_image() {
    let ignored = File::read(".dockerignore");
    assert_none(&left_out(&files("src", "rs"), &ignored));
}

/// Every page for people.
fn pages() -> Vec<File> {
    let root = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    let mut pages = root.map(File::read).to_vec();
    pages.extend(files("docs", "md"));
    pages.extend(files("examples", "md"));
    pages.extend(files("clients", "md"));
    pages
}

/// Every variable that is read: one for each setting, and those that the sources name.
fn variables() -> BTreeSet<String> {
    let variable = |path: String| format!("LOCKKEEPER_{}", path.replace('.', "_").to_uppercase());
    let mut known: BTreeSet<_> = documented().into_iter().map(variable).collect();
    for file in files("src", "rs").into_iter().chain([File::read("deploy/install.sh")]) {
        let text: Vec<_> = file.text.lines().take(file.lines_before_tests()).collect();
        known.extend(named_variables(&text.join("\n")));
    }
    known
}

fn named_variables(text: &str) -> BTreeSet<String> {
    let begins = text.match_indices("LOCKKEEPER_").map(|(at, _)| &text[at..]);
    let names = begins.filter_map(|rest| rest.split(|letter| !is_word(letter)).next());
    names.filter(|name| !name.ends_with('_')).map(str::to_owned).collect()
}

fn strange_variables(page: &File, known: &BTreeSet<String>) -> Vec<String> {
    let named = named_variables(&page.text);
    let strange = named.difference(known).filter(|name| *name != PLACEHOLDER);
    strange.map(|name| format!("{}: {name} is read by nothing", page.path)).collect()
}

/// What can be typed.
struct Commands {
    targets: BTreeSet<String>,
    words: BTreeSet<String>,
}

impl Commands {
    fn read() -> Self {
        let mut commands = Self::of(&File::read("Makefile"), &File::read("src/cli/mod.rs"));
        commands.words.extend(words_of(&File::read("src/cli/locks.rs"), "enum LockCommand {"));
        commands
    }

    /// The targets of the Makefile, and the words of the command line.
    fn of(makefile: &File, cli: &File) -> Self {
        Self { targets: targets(makefile), words: words_of(cli, "enum Command {") }
    }

    fn missing(&self, page: &File) -> Vec<String> {
        let code = shown_code(page);
        let targets = typed(&code, "make ").into_iter().filter(|one| !self.targets.contains(one));
        let mut words = typed(&code, "lockkeeper ");
        words.extend(typed(&code, "lockkeeper\", \""));
        let words = words.into_iter().filter(|one| !self.words.contains(one));
        targets
            .map(|target| format!("{}: there is no `make {target}`", page.path))
            .chain(words.map(|word| format!("{}: there is no `lockkeeper {word}`", page.path)))
            .collect()
    }
}

/// The words of the commands in an enumeration.
fn words_of(cli: &File, begin: &str) -> BTreeSet<String> {
    let code = cli.code();
    let words = code.split_once(begin).unwrap().1.split("\n}").next().unwrap();
    let words = words.lines().map(|line| line.trim().split([',', '{', '(', ' ']).next().unwrap());
    let words = words.filter(|word| word.starts_with(char::is_uppercase));
    words.filter(|word| word.chars().all(is_word)).map(typed_as).collect()
}

/// `ForceRelease` is typed as force-release.
fn typed_as(name: &str) -> String {
    let mut word = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

/// What a page shows as code, without comments; of another file all.
fn shown_code(page: &File) -> String {
    if !page.path.ends_with(".md") {
        return page.text.clone();
    }
    let mut shown = String::new();
    for (at, part) in page.text.split("\n```").enumerate() {
        if at % 2 == 1 {
            let lines = part.lines().skip(1).filter(|line| !line.trim_start().starts_with('#'));
            lines.for_each(|line| shown.push_str(&format!("{line}\n")));
        } else {
            let spans = part.split('`').skip(1).step_by(2);
            spans.for_each(|span| shown.push_str(&format!("{}\n", span.replace('\n', " "))));
        }
    }
    shown
}

/// The words that stand behind `command`, in code.
fn typed(code: &str, command: &str) -> BTreeSet<String> {
    let begins = code.match_indices(command).filter(|(at, _)| {
        let before = &code[..*at];
        // In Python `from lockkeeper import`.
        before.is_empty()
            || before.ends_with(|letter: char| letter.is_whitespace() || letter == '/')
                && !before.ends_with("from ")
    });
    let words = begins.filter_map(|(at, _)| {
        let rest = &code[at + command.len()..];
        rest.split(|letter: char| !letter.is_ascii_lowercase() && letter != '-').next()
    });
    words.filter(|word| word.starts_with(char::is_alphabetic)).map(str::to_owned).collect()
}

fn targets(makefile: &File) -> BTreeSet<String> {
    let rules = makefile.text.lines().filter_map(|line| line.split_once(':'));
    rules.filter(|(name, _)| is_target(name)).map(|(name, _)| name.to_owned()).collect()
}

fn is_target(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| is_word(letter) || letter == '-')
}

fn broken_targets(makefile: &File, manifest: &File, there: impl Fn(&str) -> bool) -> Vec<String> {
    let known = targets(makefile);
    let mut faults = Vec::new();
    for line in makefile.text.lines() {
        let phony = line.strip_prefix(".PHONY: ").unwrap_or_default().split(' ');
        let made = typed(line, "$(MAKE) ").into_iter();
        let rule = line.split_once(": ").filter(|(name, _)| is_target(name));
        let needed = rule.map_or("", |(_, rest)| rest).split(' ');
        for name in phony.chain(needed).map(str::to_owned).chain(made) {
            if !name.is_empty() && !known.contains(&name) {
                faults.push(format!("{}: there is no target {name}", makefile.path));
            }
        }
        let recipe: Vec<_> = line.split_whitespace().filter(|_| line.starts_with('\t')).collect();
        for pair in
            recipe.windows(2).filter(|pair| ["--bench", "--test", "--bin"].contains(&pair[0]))
        {
            if !manifest.text.contains(&format!("name = \"{}\"", pair[1])) {
                faults.push(format!("{}: there is no {} {}", makefile.path, pair[0], pair[1]));
            }
        }
        let image = recipe.starts_with(&["docker", "build"]).then_some("Dockerfile");
        let scripts = recipe.iter().copied().filter(|word| word.starts_with("./"));
        for path in scripts.chain(image).filter(|path| !there(path)) {
            faults.push(format!("{}: there is no {path}", makefile.path));
        }
    }
    faults
}

fn dead_links(page: &File, there: impl Fn(&str) -> bool) -> Vec<String> {
    let directory = page.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let links = page.text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links = links.filter(|link| !link.is_empty() && !link.contains("://"));
    let path = |link: &str| Path::new(directory).join(link).to_str().unwrap().to_owned();
    let dead = links.filter(|link| !there(&path(link)));
    dead.map(|link| format!("{}: {link} is not there", page.path)).collect()
}

/// The lines that are too wide, outside of code.
fn wide_lines(page: &File) -> Vec<String> {
    let (mut faults, mut in_code) = (Vec::new(), false);
    for (number, line) in (1..).zip(page.text.lines()) {
        in_code ^= line.starts_with("```");
        let most = if line.starts_with('|') { MAX_ROW } else { MAX_COLUMNS };
        if !in_code && line.chars().count() > most {
            faults.push(format!("{}:{number}: more than {most} columns", page.path));
        }
    }
    faults
}

/// The beginnings of the rows about the `impl Drop`s of a file.
fn drops(file: &File) -> Vec<String> {
    let (code, path) = (file.code_before_tests(), file.path.trim_start_matches("src/"));
    let types = code.lines().filter_map(|line| line.split_once(" Drop for "));
    let names = types.filter_map(|(_, rest)| rest.split(|letter| !is_word(letter)).next());
    names.map(|name| format!("| `{name}` | `{path}` |")).collect()
}

/// Files outside of `src` that the sources include and the image's build does not get.
fn left_out(sources: &[File], ignored: &File) -> Vec<String> {
    let kept: Vec<_> = ignored.text.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut faults = Vec::new();
    for file in sources {
        let included = ["include_str!(\"", "include_bytes!(\""].into_iter();
        let included = included.flat_map(|begin| file.text.split(begin).skip(1));
        for path in included.filter_map(|rest| rest.split('"').next()) {
            let outside = path.strip_prefix("../../").filter(|path| !path.starts_with(".."));
            let lost = |path: &str| !kept.iter().any(|kept| Path::new(path).starts_with(kept));
            if let Some(outside) = outside.filter(|path| lost(path)) {
                faults.push(format!("{}: .dockerignore leaves out {outside}", file.path));
            }
        }
    }
    faults
}

#[test]
fn a_variable_that_there_is_not_is_found() {
    let known = variables();
    let page = |text| File::planted("README.md", text);
    assert_none(&strange_variables(&page("LOCKKEEPER_TTL_MIN=1s LOCKKEEPER_CONFIG=a"), &known));
    let strange = "`LOCKKEEPER_TTL_MINIMUM`, or LOCKKEEPER_SECTION_KEY";
    assert_found(&strange_variables(&page(strange), &known), "LOCKKEEPER_TTL_MINIMUM");
}

#[test]
fn a_command_that_there_is_not_is_found() {
    let makefile = File::planted("Makefile", ".PHONY: run\nrun: tools\n\ta\ntools:\n\tb\n");
    let cli = "enum Command {\n    /// Serve.\n    Serve,\n    Exec(Exec),\n}\n";
    let commands = Commands::of(&makefile, &File::planted("src/cli/mod.rs", cli));
    let page = |text| File::planted("README.md", text);
    let fine =
        "make a wish\n\n```sh\nA=1 make run\n# make hay\nlockkeeper serve\n```\n`make tools`";
    assert_none(&commands.missing(&page(fine)));
    assert_found(&commands.missing(&page("Type `make hay`.")), "no `make hay`");
    assert_found(&commands.missing(&page("a\n```sh\nmake hay\n```\n")), "no `make hay`");
    assert_found(&commands.missing(&page("`lockkeeper unlock`")), "no `lockkeeper unlock`");
    let image = File::planted("Dockerfile", "CMD [\"/bin/lockkeeper\", \"check\"]");
    assert_found(&commands.missing(&image), "no `lockkeeper check`");
}

#[test]
fn a_drop_in_the_sources_is_found() {
    let source = File::planted("src/a/b.rs", "impl<T: 'static> Drop for Kept<T> {\n");
    assert_eq!(drops(&source), ["| `Kept` | `a/b.rs` |"]);
}

#[test]
fn a_target_a_link_and_an_include_that_lead_nowhere_are_found() {
    let manifest = File::planted("Cargo.toml", "[[bench]]\nname = \"http\"");
    let makefile = |text| File::planted("Makefile", text);
    let broken = |text| broken_targets(&makefile(text), &manifest, |_| false);
    assert_none(&broken("a: b\n\tcargo bench --bench http\nb:\n\t$(MAKE) a\n"));
    assert_found(&broken(".PHONY: a\n"), "no target a");
    assert_found(&broken("a: b\n\tc\n"), "no target b");
    assert_found(&broken("a:\n\t$(MAKE) b\n"), "no target b");
    assert_found(&broken("a:\n\tcargo bench --bench locks\n"), "no --bench locks");
    assert_found(&broken("a:\n\t./tests/tools\n"), "no ./tests/tools");
    assert_found(&broken("a:\n\tdocker build .\n"), "no Dockerfile");
    let page = File::planted("docs/a.md", "[a](b.md#c) [d](https://e) [f](#g)");
    assert_none(&dead_links(&page, |path| path == "docs/b.md"));
    assert_found(&dead_links(&page, |_| false), "b.md is not there");
    let page = |text: String| File::planted("docs/a.md", &text);
    let wide = "a".repeat(MAX_COLUMNS + 1);
    assert_none(&wide_lines(&page(format!("|{wide}|\n```sh\n{wide}\n```\n"))));
    assert_found(&wide_lines(&page(format!("a\n{wide}\n"))), "a.md:2: more than 100");
    let source = File::planted("src/a/mod.rs", "include_str!(\"../../config/a.toml\")");
    let ignored = |text| File::planted(".dockerignore", text);
    assert_none(&left_out(&[source], &ignored("*\n!config\n")));
    let source = File::planted("src/a/mod.rs", "include_str!(\"../../config/a.toml\")");
    assert_found(&left_out(&[source], &ignored("*\n!src\n")), "leaves out config/a.toml");
}
