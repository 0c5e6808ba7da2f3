// Package secrettest tells the secrets of tests from everything else that tests
// print, so that tests/tokens can look for them in the output of a whole run.
package secrettest

import "regexp"

// Word is in every token, password and key that a test makes up itself and that
// must not be printed. No test prints it on purpose, and none has it in its name.
const Word = "s3cr3t"

// pattern is Word, and what the tokens of package apikey begin with: a part of
// one is a leak as well.
var pattern = regexp.MustCompile(Word + `|sk_(live|test)_[a-z2-7]{8}`)

// Known tells whether text is, or holds, what Find would find.
func Known(text string) bool { return Find(text) != nil }

// Find returns where in text the first secret of a test begins and ends, or nil
// if there is none.
func Find(text string) []int { return pattern.FindStringIndex(text) }
