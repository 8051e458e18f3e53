//! What a config may say, and hardly means.

use super::advice::is_setting;
use crate::function_config::FunctionConfig;

/// What is probably wrong with a valid `fn.toml`, each with what to write instead.
pub fn warnings(text: &str, config: &FunctionConfig) -> Vec<String> {
    let Ok(written) = text.parse::<toml::Table>() else {
        return Vec::new();
    };
    let misplaced = config
        .env
        .keys()
        .filter(|key| is_setting(key) && !written.contains_key(*key));
    let mut warnings: Vec<_> = misplaced
        .map(|key| {
            format!(
                "[env] has `{key}`, so that it is a variable and not the setting of that name: write it above [env]"
            )
        })
        .collect();
    if written.contains_key("tmp") && config.tmp > config.memory {
        warnings.push(format!(
            "tmp = \"{}\" is more than memory = \"{}\", which the files in /tmp are a part of: raise memory, or \
             lower tmp",
            config.tmp, config.memory
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const START: &str = "name = \"f\"\nruntime = \"python\"\nentry = \"m.h\"\n";

    fn told(text: &str) -> Vec<String> {
        let text = format!("{START}{text}\n");
        warnings(&text, &parse(&text).unwrap())
    }

    #[test]
    fn a_setting_below_env_is_told_unless_it_is_above_too() {
        let told = told("[env]\ntimeout = \"10s\"\nMODE = \"x\"\nconcurrency = \"4\"");
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[1].starts_with("[env] has `timeout`") && told[1].ends_with("above [env]"),
            "{told:?}"
        );
        assert_eq!(self::told("timeout = \"9s\"\n[env]\ntimeout = \"10s\""), [""; 0]);
        assert_eq!(self::told("[env]\nTIMEOUT = \"10s\"\ncron = \"x\""), [""; 0]);
    }

    #[test]
    fn a_tmp_that_memory_cannot_hold_is_told() {
        let told = told("memory = \"64MiB\"\ntmp = \"1GiB\"");
        assert!(
            told[0].contains("tmp = \"1GiB\" is more than memory = \"64MiB\""),
            "{told:?}"
        );
        assert_eq!(self::told("memory = \"64MiB\"\ntmp = \"64MiB\""), [""; 0]);
        assert_eq!(self::told("memory = \"32MiB\""), [""; 0], "the default");
    }
}
