package main

import (
	"bytes"
	"strings"
	"testing"
)

// recorded has the forms of govulncheck's messages: a vulnerability that is called in two ways, one
// in a package that is only imported, and one without a fix.
const recorded = `{"config": {"protocol_version": "v1.0.0"}}
{"progress": {"message": "Scanning your code"}}
{"osv": {"id": "GO-2025-1111", "summary": "Loops in example.com/loop"}}
{"osv": {"id": "GO-2025-2222", "summary": "Not called"}}
{"osv": {"id": "GO-2025-3333", "summary": "Reads too much"}}
{"finding": {"osv": "GO-2025-2222", "trace": [{"module": "example.com/other", "version": "v1.0.0", "package": "example.com/other"}]}}
{"finding": {"osv": "GO-2025-1111", "fixed_version": "v1.2.4", "trace": [
  {"module": "example.com/loop", "version": "v1.2.3", "package": "example.com/loop", "function": "Run", "receiver": "*Loop"},
  {"module": "example.com/us", "package": "example.com/us/cmd", "function": "main"}]}}
{"finding": {"osv": "GO-2025-1111", "fixed_version": "v1.2.4", "trace": [{"module": "example.com/loop", "version": "v1.2.3", "package": "example.com/loop", "function": "Stop"}]}}
{"finding": {"osv": "GO-2025-3333", "trace": [{"module": "example.com/read", "version": "v0.1.0", "package": "example.com/read", "function": "All"}]}}
`

// TestFindings: what the code calls is found once, and fails the check unless it is allowed.
func TestFindings(t *testing.T) {
	found, err := readFindings(strings.NewReader(recorded))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || found[0].id != "GO-2025-1111" || found[1].id != "GO-2025-3333" {
		t.Fatalf("found %+v", found)
	}
	var out bytes.Buffer
	err = report(&out, found, map[string]string{"GO-2025-3333": "berth reads no input there", "GO-2020-0001": "an old reason here"})
	if err == nil || !strings.Contains(err.Error(), "GO-2025-1111") || strings.Contains(err.Error(), "GO-2025-3333") {
		t.Errorf("report returned %v", err)
	}
	for _, want := range []string{
		"GO-2025-1111: Loops in example.com/loop\n  in example.com/loop v1.2.3, fixed in v1.2.4\n  called by example.com/loop.*Loop.Run < example.com/us/cmd.main\n",
		"fixed in no version", "allowed: berth reads no input there", "GO-2020-0001 is allowed and was not found",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, &out)
		}
	}
	if err := report(&out, found, map[string]string{"GO-2025-1111": "a", "GO-2025-3333": "b"}); err != nil {
		t.Errorf("everything is allowed, and report returned %v", err)
	}
	if _, err := readFindings(strings.NewReader(`{"osv": `)); err == nil {
		t.Error("half a message is no error")
	}
}

// TestAllowed: every entry has an ID and a reason; the file of the repository is valid.
func TestAllowed(t *testing.T) {
	if _, err := parseAllowed(allowedText); err != nil {
		t.Error(err)
	}
	got, err := parseAllowed("# why\n\nGO-2025-1234  no input reaches it\n")
	if err != nil || got["GO-2025-1234"] != "no input reaches it" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"GO-2025-1234", "GO-2025-1234 because", "CVE-2025-1 no input reaches it"} {
		if _, err := parseAllowed(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
