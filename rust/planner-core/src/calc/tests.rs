use super::*;

fn example(calculator: &Calculator) -> BTreeMap<String, f64> {
    let names = calculator.parameters.iter().map(|p| p.name.to_owned());
    names.zip(calculator.example.iter().copied()).collect()
}

#[test]
fn every_calculator_answers_its_example_with_its_declared_results() {
    assert!(calculators().count() >= 40);
    for calculator in calculators() {
        assert_eq!(
            calculator.example.len(),
            calculator.parameters.len(),
            "{}",
            calculator.name
        );
        let results = calculator
            .call(&example(calculator))
            .expect(calculator.name);
        assert_eq!(
            results.len(),
            calculator.results.len(),
            "{}",
            calculator.name
        );
    }
}

#[test]
fn names_are_unique_and_words_are_there() {
    let mut names: Vec<_> = calculators().map(|c| c.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), calculators().count());
    for c in calculators() {
        for text in [c.doc, c.equation, c.source, c.code] {
            assert!(
                !text.is_empty() && !text.ends_with('.'),
                "{}: {text}",
                c.name
            );
        }
        let units = c
            .parameters
            .iter()
            .map(|p| p.unit)
            .chain(c.results.iter().map(|r| r.unit));
        for unit in units {
            let known = ["count", "number", "bytes", "bytes/s", "s", "1", "switch"];
            assert!(known.contains(&unit), "{}: {unit}", c.name);
        }
    }
}

#[test]
fn every_problem_is_told_at_once() {
    let calculator = find("all-reduce").unwrap();
    let given = [("rank".to_owned(), 8.0), ("bytes".to_owned(), f64::NAN)];
    let problems = calculator.call(&given.into()).unwrap_err();
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn no_argument_makes_a_calculator_panic_or_answer_nonsense() {
    let odd = [
        f64::NAN,
        f64::INFINITY,
        -1.0,
        0.0,
        0.5,
        1.0,
        7.0,
        9e15,
        1e30,
    ];
    for calculator in calculators() {
        for (name, usual) in example(calculator) {
            for value in odd {
                let mut given = example(calculator);
                given.insert(name.clone(), value);
                if let Ok(results) = calculator.call(&given) {
                    let good = results.iter().all(|r| r.is_finite() && *r >= 0.0);
                    assert!(
                        good,
                        "{} {name}={value} (not {usual}): {results:?}",
                        calculator.name
                    );
                }
            }
        }
    }
}

#[test]
fn whole_numbers_and_ranges_are_enforced() {
    let call = |name: &str, argument: &str, value: f64| {
        let calculator = find(name).unwrap();
        let mut given = example(calculator);
        given.insert(argument.to_owned(), value);
        calculator.call(&given)
    };
    assert!(call("all-reduce", "ranks", 1.5).is_err());
    assert!(call("all-reduce", "ranks", 0.0).is_err());
    assert!(call("straggler", "probability", 1.1).is_err());
    assert!(call("zero-memory", "stage", 4.0).is_err());
    assert!(call("in-flight", "stage", 4.0).is_err());
    assert!(call("active-experts", "top_k", 257.0).is_err());
    assert!(call("tp-layer", "sequence_parallel", 2.0).is_err());
}
