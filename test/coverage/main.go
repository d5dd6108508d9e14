// Command coverage writes docs/cri-coverage.md: every call and every field of CRI,
// the test that tries it, and what a host must have for it.
//
// It compares three things and prints nothing but their differences when they do not
// agree: the API that go.mod names, the table of rows in this package, and the tests
// in test/integration. So a call or a field that a new version of the API adds, a row
// of something that is gone, and a test that was renamed each fail `make verify`.
//
// With -host it tries the probes of the abilities on this machine, and prints their
// output in each row that needs what the machine lacks.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	host := flag.Bool("host", false, "tell of this machine: try what each row needs")
	tests := flag.String("tests", "test/integration", "the directory of the tests")
	flag.Parse()
	if err := run(*host, *tests); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func run(host bool, dir string) error {
	found, err := readTests(dir)
	if err != nil {
		return err
	}
	tables := allTables()
	if faults := check(tables, found, abilities()); len(faults) > 0 {
		return fmt.Errorf("the API, the table in test/coverage and the tests in %s do not agree:\n%w", dir, errors.Join(faults...))
	}
	var missing map[string]string
	if host {
		missing = probeAll(abilities())
	}
	fmt.Print(render(tables, found, missing))
	return nil
}
