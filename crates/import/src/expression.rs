//! Parser of the expressions by which other programs select requests: Traefik's rules and a subset of CEL.
//!
//! Both have calls, `&&`, `||`, `!` and parentheses; CEL has attributes, comparisons, `in` and lists, too. What an
//! expression means is up to the importer. Arithmetic, `? :` and macros with variables are syntax errors here.

mod tokens;

use self::tokens::{ExpressionToken, tokenize};

/// Maximum nesting of an expression.
const MAX_DEPTH: usize = 32;
/// Maximum number of tokens of an expression.
const MAX_TOKENS: usize = 2000;

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// A text in quotes.
    Text(String),
    /// A number.
    Number(String),
    /// A name, such as `request` or `true`.
    Name(String),
    List(Vec<Self>),
    /// `of.name`
    Member(Box<Self>, String),
    /// `of[index]`
    Index(Box<Self>, Box<Self>),
    /// `name(arguments)`, or `of.name(arguments)`.
    Call {
        of: Option<Box<Self>>,
        name: String,
        arguments: Vec<Self>,
    },
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Equal(Box<Self>, Box<Self>),
    NotEqual(Box<Self>, Box<Self>),
    /// `value in values`
    In(Box<Self>, Box<Self>),
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// What is not supported, in a few words.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let tokens = tokenize(text)?;
        if tokens.len() > MAX_TOKENS {
            return Err(format!("more than {MAX_TOKENS} words"));
        }
        let mut parser = ExpressionParser { tokens, at: 0, depth: 0 };
        let expression = parser.either()?;
        match parser.tokens.get(parser.at) {
            None => Ok(expression),
            Some(token) => Err(format!("unexpected {token}")),
        }
    }

    /// Returns the names of an attribute such as `request.headers`, or with an index such as `request.headers["a"]`.
    pub(super) fn path(&self) -> Option<Vec<&str>> {
        match self {
            Self::Name(name) => Some(vec![name]),
            Self::Member(of, name) => {
                let mut path = of.path()?;
                path.push(name);
                Some(path)
            }
            Self::Index(of, index) => {
                let Self::Text(name) = &**index else { return None };
                let mut path = of.path()?;
                path.push(name);
                Some(path)
            }
            _ => None,
        }
    }
}

struct ExpressionParser {
    tokens: Vec<ExpressionToken>,
    at: usize,
    depth: usize,
}

impl ExpressionParser {
    fn takes(&mut self, sign: &str) -> bool {
        let is_next = matches!(self.tokens.get(self.at), Some(ExpressionToken::Sign(next)) if *next == sign);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.takes(sign) {
            return Ok(());
        }
        Err(match self.tokens.get(self.at) {
            Some(token) => format!("expected `{sign}`, got {token}"),
            None => format!("expected `{sign}` at the end"),
        })
    }

    fn either(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("nested more than {MAX_DEPTH} levels deep"));
        }
        let mut left = self.both()?;
        while self.takes("||") {
            left = Expression::Or(Box::new(left), Box::new(self.both()?));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn both(&mut self) -> Result<Expression, String> {
        let mut left = self.comparison()?;
        while self.takes("&&") {
            left = Expression::And(Box::new(left), Box::new(self.comparison()?));
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Result<Expression, String> {
        let left = self.unary()?;
        let is_in = matches!(self.tokens.get(self.at), Some(ExpressionToken::Name(name)) if name == "in");
        if is_in {
            self.at += 1;
            return Ok(Expression::In(Box::new(left), Box::new(self.unary()?)));
        }
        if self.takes("==") {
            return Ok(Expression::Equal(Box::new(left), Box::new(self.unary()?)));
        }
        if self.takes("!=") {
            return Ok(Expression::NotEqual(Box::new(left), Box::new(self.unary()?)));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expression, String> {
        let mut is_negated = false;
        while self.takes("!") {
            is_negated = !is_negated;
        }
        let value = self.postfix()?;
        Ok(if is_negated { Expression::Not(Box::new(value)) } else { value })
    }

    fn postfix(&mut self) -> Result<Expression, String> {
        let mut value = self.primary()?;
        loop {
            if self.takes(".") {
                let name = self.name()?;
                value = match self.takes("(") {
                    true => {
                        Expression::Call { of: Some(Box::new(value)), name, arguments: self.values(")")? }
                    }
                    false => Expression::Member(Box::new(value), name),
                };
            } else if self.takes("[") {
                let index = self.either()?;
                self.expect("]")?;
                value = Expression::Index(Box::new(value), Box::new(index));
            } else {
                return Ok(value);
            }
        }
    }

    fn primary(&mut self) -> Result<Expression, String> {
        if self.takes("(") {
            let value = self.either()?;
            self.expect(")")?;
            return Ok(value);
        }
        if self.takes("[") {
            return Ok(Expression::List(self.values("]")?));
        }
        let token = self.tokens.get(self.at).cloned().ok_or_else(|| "it ends too early".to_owned())?;
        self.at += 1;
        match token {
            ExpressionToken::Text(text) => Ok(Expression::Text(text)),
            ExpressionToken::Number(number) => Ok(Expression::Number(number)),
            ExpressionToken::Name(name) if self.takes("(") => {
                Ok(Expression::Call { of: None, name, arguments: self.values(")")? })
            }
            ExpressionToken::Name(name) => Ok(Expression::Name(name)),
            ExpressionToken::Sign(_) => Err(format!("unexpected {token}")),
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let Some(ExpressionToken::Name(name)) = self.tokens.get(self.at).cloned() else {
            return Err("expected a name behind `.`".to_owned());
        };
        self.at += 1;
        Ok(name)
    }

    /// Reads values with commas between them, up to `end`.
    fn values(&mut self, end: &str) -> Result<Vec<Expression>, String> {
        let mut values = Vec::new();
        if self.takes(end) {
            return Ok(values);
        }
        loop {
            values.push(self.either()?);
            if self.takes(end) {
                return Ok(values);
            }
            self.expect(",")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Expression {
        Expression::Text(text.to_owned())
    }

    #[test]
    fn and_binds_more_tightly_than_or() {
        let parsed = Expression::parse("a || b && !c").unwrap();
        let name = |name: &str| Box::new(Expression::Name(name.to_owned()));
        let both = Expression::And(name("b"), Box::new(Expression::Not(name("c"))));
        assert_eq!(parsed, Expression::Or(name("a"), Box::new(both)));
    }

    #[test]
    fn calls_with_any_kind_of_quotes_are_parsed() {
        let Expression::Call { name, arguments, .. } =
            Expression::parse("Header(`a\\d`, \"b\\\"\")").unwrap()
        else {
            panic!("no call");
        };
        assert_eq!((name.as_str(), arguments), ("Header", vec![text("a\\d"), text("b\"")]));
        let Expression::Call { of, arguments, .. } =
            Expression::parse("request.path.startsWith('/a')").unwrap()
        else {
            panic!("no call");
        };
        assert_eq!(of.unwrap().path(), Some(vec!["request", "path"]));
        assert_eq!(arguments, [text("/a")]);
    }

    #[test]
    fn attributes_have_a_path_with_names_and_indexes() {
        let parsed = Expression::parse("request.headers['x-a'] == \"1\"").unwrap();
        let Expression::Equal(left, right) = parsed else { panic!("no comparison") };
        assert_eq!(left.path(), Some(vec!["request", "headers", "x-a"]));
        assert_eq!(*right, text("1"));
        let parsed = Expression::parse("request.method in ['GET', 'HEAD']").unwrap();
        let Expression::In(_, list) = parsed else { panic!("no list") };
        assert_eq!(*list, Expression::List(vec![text("GET"), text("HEAD")]));
    }

    #[test]
    fn expressions_beyond_the_subset_are_errors() {
        for (text, expected) in [
            ("", "it ends too early"),
            ("a +", "unexpected character `+`"),
            ("a ? b : c", "unexpected character `?`"),
            ("f('a'", "expected `,` at the end"),
            ("'open", "a text without its end"),
            ("a b", "unexpected `b`"),
            ("x.", "expected a name behind `.`"),
        ] {
            assert_eq!(Expression::parse(text), Err(expected.to_owned()), "{text}");
        }
        let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        assert_eq!(Expression::parse(&deep), Err("nested more than 32 levels deep".to_owned()));
        assert_eq!(Expression::parse(&"!".repeat(5000)), Err("more than 2000 words".to_owned()));
    }
}
