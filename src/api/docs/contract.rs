//! The contract as the page reads it: operations, parameters, schemas, examples.

use serde_norway::{Mapping, Value};

/// The verbs of HTTP that an operation may have, in the order of the page.
const METHODS: [&str; 5] = ["post", "get", "put", "patch", "delete"];

/// `openapi.yaml`.
pub(super) struct Contract(Value);

/// An operation: a method on a path.
pub(super) struct Operation<'a> {
    pub(super) path: &'a str,
    pub(super) method: String,
    pub(super) spec: &'a Value,
    contract: &'a Contract,
}

impl Contract {
    /// Reads the contract.
    ///
    /// # Panics
    ///
    /// If it is no YAML.
    pub(super) fn read(text: &str) -> Self {
        Self(serde_norway::from_str(text).expect("the contract is YAML"))
    }

    /// The value itself, or the one that it refers to.
    pub(super) fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(reference) => self.at(reference.trim_start_matches("#/")),
            None => value,
        }
    }

    /// The value at this path of names.
    pub(super) fn at(&self, path: &str) -> &Value {
        path.split('/').fold(&self.0, |value, name| &value[name])
    }

    /// All operations, in the order of the file.
    pub(super) fn operations(&self) -> Vec<Operation<'_>> {
        let mut operations = Vec::new();
        for (path, methods) in entries(&self.0["paths"]) {
            for method in METHODS {
                let spec = &methods[method];
                if spec.is_mapping() {
                    let method = method.to_uppercase();
                    operations.push(Operation { path, method, spec, contract: self });
                }
            }
        }
        operations
    }

    /// The members of a schema that is an object: name, schema, and whether it is always there.
    pub(super) fn members<'a>(&'a self, schema: &'a Value) -> Vec<(&'a str, &'a Value, bool)> {
        let schema = self.resolve(schema);
        let required = schema["required"].as_sequence();
        let is_required = |name| required.is_some_and(|all| all.iter().any(|one| one == name));
        let members = entries(&schema["properties"]);
        members.map(|(name, member)| (name, member, is_required(name))).collect()
    }

    /// The example of a body: that of its media type, or of its schema.
    pub(super) fn example<'a>(&'a self, media_type: &'a Value) -> &'a Value {
        match &media_type["example"] {
            Value::Null => &self.resolve(&media_type["schema"])["example"],
            example => example,
        }
    }
}

impl<'a> Operation<'a> {
    /// Its name.
    pub(super) fn id(&self) -> &'a str {
        text(&self.spec["operationId"])
    }

    /// What it does, in a line.
    pub(super) fn summary(&self) -> &'a str {
        text(&self.spec["summary"])
    }

    /// Returns whether it needs an API key where there are any.
    pub(super) fn is_guarded(&self) -> bool {
        self.spec["security"].is_null()
    }

    /// Its parameters.
    pub(super) fn parameters(&self) -> Vec<&'a Value> {
        let parameters = self.spec["parameters"].as_sequence().into_iter().flatten();
        parameters.map(|parameter| self.contract.resolve(parameter)).collect()
    }

    /// The media type of its body, if it has one.
    pub(super) fn body(&self) -> Option<&'a Value> {
        let body = &self.spec["requestBody"]["content"]["application/json"];
        body.is_mapping().then_some(body)
    }

    /// Its answers by status.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let answers = entries(&self.spec["responses"]);
        answers.map(|(status, answer)| (status, self.contract.resolve(answer)))
    }
}

/// The entries of a mapping, in the order of the file.
pub(super) fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let entries = value.as_mapping().into_iter().flat_map(Mapping::iter);
    entries.map(|(name, value)| (text(name), value))
}

/// A text; empty if there is none.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The words of a text between backticks.
pub(super) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}
