//! Complexity of GraphQL requests (GraphQL, September 2025): the number of fields that a document selects, times the elements of the lists
//! that it asks for.
//!
//! It is an estimate without a schema. The document is parsed once, fragments are measured once each, and numbers saturate, so the time is
//! linear in the size of the document. What no service would execute is unreadable.

mod request;

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use apollo_parser::Parser;
use apollo_parser::cst::{self, CstNode as _};

pub(crate) use self::request::GraphqlRequest;
pub use self::request::UrlParameters;
use crate::Unreadable;
use crate::fields::{FieldMask, FieldName, FieldSet, GraphqlComplexity, Kind, MAX_FIELDS, Value};
use crate::json::JsonReader;
use crate::path::{Path, Step};

/// Maximum number of tokens of all documents of a body, with white space and commas.
pub const MAX_TOKENS: usize = 20_000;

/// Maximum depth of selection sets, fragments included, and of values.
const MAX_NESTING: usize = 128;

/// The measure of a selection set.
#[derive(Clone, Copy, Default)]
struct SelectionWeight {
    units: u64,
    depth: u32,
}

enum FragmentState {
    Unmeasured(Option<cst::SelectionSet>),
    /// Being measured: a spread within makes a cycle.
    Open,
    Measured(SelectionWeight),
}

/// Measures one document.
struct DocumentMeasure<'c> {
    complexity: &'c GraphqlComplexity,
    fragments: HashMap<String, FragmentState>,
    /// Numbers of elements that variables state.
    variables: HashMap<String, u64>,
}

/// Returns the complexity of `request`, whose document may have `tokens`, of which the used ones are taken.
///
/// # Errors
/// [`Unreadable::Graphql`] if no service would execute it, [`Unreadable::GraphqlTooLarge`] if it is too deep or too long.
pub(crate) fn measure(
    complexity: &GraphqlComplexity,
    request: &GraphqlRequest<'_>,
    tokens: &mut usize,
) -> Result<u64, Unreadable> {
    let tree = Parser::new(request.query).recursion_limit(MAX_NESTING).token_limit(*tokens).parse();
    *tokens = tokens.saturating_sub(tree.token_limit().high);
    if [tree.token_limit(), tree.recursion_limit()].iter().any(|limit| limit.high > limit.limit) {
        return Err(Unreadable::GraphqlTooLarge);
    }
    if tree.errors().len() > 0 {
        return Err(Unreadable::Graphql);
    }
    let (mut operations, mut fragments) = (Vec::new(), HashMap::new());
    for definition in tree.document().definitions() {
        match definition {
            cst::Definition::OperationDefinition(operation) => operations.push(operation),
            cst::Definition::FragmentDefinition(fragment) => {
                let name = text_of(fragment.fragment_name().and_then(|name| name.name()))?;
                let state = FragmentState::Unmeasured(fragment.selection_set());
                if fragments.insert(name, state).is_some() {
                    return Err(Unreadable::Graphql);
                }
            }
            _ => return Err(Unreadable::Graphql),
        }
    }
    let operation = selected(operations, request.operation_name)?;
    let variables = variables(complexity, &tree.document(), &operation, request.variables)?;
    let mut measure = DocumentMeasure { complexity, fragments, variables };
    Ok(measure.selections(operation.selection_set(), 1)?.units)
}

fn text_of(name: Option<cst::Name>) -> Result<String, Unreadable> {
    Ok(name.ok_or(Unreadable::Graphql)?.text().as_str().to_owned())
}

/// Returns the numbers of elements that variables state: the given values, or the defaults of the operation.
fn variables(
    complexity: &GraphqlComplexity,
    document: &cst::Document,
    operation: &cst::OperationDefinition,
    given: Option<&str>,
) -> Result<HashMap<String, u64>, Unreadable> {
    let arguments = document.syntax().descendants().filter_map(cst::Argument::cast);
    let mut names: Vec<String> = Vec::new();
    for argument in arguments.filter(|argument| is_list(complexity, argument)) {
        let Some(cst::Value::Variable(variable)) = argument.value() else { continue };
        let name = text_of(variable.name())?;
        if !names.contains(&name) {
            names.push(name);
        }
        if names.len() > MAX_FIELDS {
            return Err(Unreadable::GraphqlTooLarge);
        }
    }
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let mut values = default_values(operation);
    if let Some(given) = given {
        values.extend(numbers_in(given, names)?);
    }
    Ok(values)
}

fn is_list(complexity: &GraphqlComplexity, argument: &cst::Argument) -> bool {
    let name = argument.name().map(|name| name.text());
    name.is_some_and(|name| complexity.lists.iter().any(|known| **known == *name.as_str()))
}

impl DocumentMeasure<'_> {
    fn selections(
        &mut self,
        set: Option<cst::SelectionSet>,
        nesting: usize,
    ) -> Result<SelectionWeight, Unreadable> {
        if nesting > MAX_NESTING {
            return Err(Unreadable::GraphqlTooLarge);
        }
        let mut sum = SelectionWeight::default();
        for selection in set.into_iter().flat_map(|set| set.selections()) {
            let one = match selection {
                cst::Selection::Field(field) => self.field(&field, nesting)?,
                cst::Selection::InlineFragment(inline) => {
                    self.selections(inline.selection_set(), nesting + 1)?
                }
                cst::Selection::FragmentSpread(spread) => {
                    let name = spread.fragment_name().and_then(|name| name.name());
                    self.fragment(text_of(name)?, nesting)?
                }
            };
            sum.units = sum.units.saturating_add(one.units);
            sum.depth = sum.depth.max(one.depth);
        }
        Ok(sum)
    }

    fn field(&mut self, field: &cst::Field, nesting: usize) -> Result<SelectionWeight, Unreadable> {
        let inner = match field.selection_set() {
            Some(set) => self.selections(Some(set), nesting + 1)?,
            None => SelectionWeight::default(),
        };
        let depth = inner.depth.saturating_add(1);
        if depth > self.complexity.max_depth {
            return Err(Unreadable::GraphqlTooLarge);
        }
        let units = inner.units.saturating_mul(self.elements(field)).saturating_add(1);
        Ok(SelectionWeight { units, depth })
    }

    fn fragment(&mut self, name: String, nesting: usize) -> Result<SelectionWeight, Unreadable> {
        let state = self.fragments.get_mut(&name).ok_or(Unreadable::Graphql)?;
        let weight = match mem::replace(state, FragmentState::Open) {
            FragmentState::Open => return Err(Unreadable::Graphql),
            FragmentState::Measured(weight) => weight,
            FragmentState::Unmeasured(set) => self.selections(set, nesting + 1)?,
        };
        self.fragments.insert(name, FragmentState::Measured(weight));
        Ok(weight)
    }

    /// Returns the highest number of elements that an argument of the field states, at least 1.
    fn elements(&self, field: &cst::Field) -> u64 {
        let arguments = field.arguments().into_iter().flat_map(|arguments| arguments.arguments());
        let lists = arguments.filter(|argument| is_list(self.complexity, argument));
        let stated = lists.filter_map(|argument| match argument.value()? {
            cst::Value::Variable(variable) => self.variables.get(variable.name()?.text().as_str()).copied(),
            value => literal(&value),
        });
        stated.max().unwrap_or(1).max(1)
    }
}

/// Returns the operation to execute (GraphQL, section 6.1).
fn selected(
    mut operations: Vec<cst::OperationDefinition>,
    name: Option<&str>,
) -> Result<cst::OperationDefinition, Unreadable> {
    if let Some(name) = name {
        let is_named = |operation: &cst::OperationDefinition| {
            operation.name().is_some_and(|own| own.text().as_str() == name)
        };
        operations.retain(is_named);
    }
    let operation = operations.pop().ok_or(Unreadable::Graphql)?;
    if operations.is_empty() { Ok(operation) } else { Err(Unreadable::Graphql) }
}

fn default_values(operation: &cst::OperationDefinition) -> HashMap<String, u64> {
    let definitions = operation.variable_definitions().into_iter();
    let definitions = definitions.flat_map(|definitions| definitions.variable_definitions());
    let value = |definition: cst::VariableDefinition| {
        let name = definition.variable()?.name()?.text().as_str().to_owned();
        Some((name, literal(&definition.default_value()?.value()?)?))
    };
    definitions.filter_map(value).collect()
}

/// Returns the number of elements that a literal states; `None` for `null`, which is as good as no argument. What is no number counts as the
/// highest, and so do negative numbers, with which some services mean all elements.
fn literal(value: &cst::Value) -> Option<u64> {
    match value {
        cst::Value::NullValue(_) => None,
        cst::Value::IntValue(int) => {
            let number = int.syntax().first_token().and_then(|token| token.text().parse().ok());
            Some(number.unwrap_or(u64::MAX))
        }
        _ => Some(u64::MAX),
    }
}

/// Reads the numbers of the variables `names` in a JSON object. What is not a number counts as the highest, and `null` as absent.
fn numbers_in(object: &str, names: Vec<String>) -> Result<impl Iterator<Item = (String, u64)>, Unreadable> {
    if !object.trim_start().starts_with('{') {
        return Err(Unreadable::Graphql);
    }
    let path = |name: &String| FieldName::Json(Arc::new(Path::of(Step::Key(name.as_str().into()))));
    let fields = FieldSet::new(names.iter().map(path));
    let mut reader = JsonReader::new(FieldMask::ALL);
    reader.read(&fields, object.as_bytes())?;
    let record = reader.record().cloned().ok_or(Unreadable::Graphql)?;
    reader.finish(&fields)?;
    let number = |(name, value): (String, Option<Value>)| {
        let value = value?;
        let number = value.text.parse().ok().filter(|_| value.kind == Kind::Number);
        Some((name, number.unwrap_or(u64::MAX)))
    };
    Ok(names.into_iter().zip(Vec::from(record)).filter_map(number))
}

#[cfg(test)]
mod tests;
