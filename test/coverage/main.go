// Command coverage writes docs/cri-coverage.md: every call and every field of CRI, its test, and
// what a host needs for it.
//
// It compares three things: the API that go.mod names, the table of rows in this package, and the
// tests in test/integration. If they do not agree, it prints the differences only. So `make verify`
// fails if a new version of the API adds a call or a field, if a row names something that no longer
// exists, and if a test was renamed.
//
// With -host it runs the probes of the abilities on this machine. In each row that needs what the
// machine lacks, it prints the probe's output.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	host := flag.Bool("host", false, "describe this machine: probe what each row needs")
	pattern := flag.Bool("docker-tests", false, "print the pattern of the tests that run over the engine docker, for -run")
	tests := flag.String("tests", "test/integration", "the directory of the tests")
	flag.Parse()
	if err := run(*host, *pattern, *tests); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func run(host, pattern bool, dir string) error {
	found, err := readTests(dir)
	if err != nil {
		return err
	}
	if pattern {
		fmt.Println(dockerTests(found))
		return nil
	}
	tables := allTables()
	faults := append(check(tables, found, abilities()), checkWithoutDocker(withoutDocker(), tables, found)...)
	if len(faults) > 0 {
		return fmt.Errorf("the API, the table in test/coverage and the tests in %s do not agree:\n%w", dir, errors.Join(faults...))
	}
	var missing map[string]string
	if host {
		missing = probeAll(abilities())
	}
	fmt.Print(render(tables, found, missing))
	return nil
}
