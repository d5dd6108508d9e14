package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestScanRunsOrSaysWhyNot: the check fails if the scan finds something, and if a required scan
// cannot run.
func TestScanRunsOrSaysWhyNot(t *testing.T) {
	found := errors.New("exit status 3")
	answers := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer answers.Close()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer refuses.Close()
	for _, c := range []struct {
		name, db, declared string
		ran                bool
		out, err           string
	}{
		{"there", answers.URL, "", true, "", "exit status 3"},
		{"files", "file:///nowhere", "", true, "", "exit status 3"},
		{"refused", refuses.URL, "", false, `skipped: needs ability "vulndb"`, ""},
		{"nobody", "http://127.0.0.1:1", "root", false, `skipped: needs ability "vulndb"`, ""},
		{"declared", "http://127.0.0.1:1", "root,vulndb", false, "", "declared by BERTH_REQUIRE but missing"},
		{"all declared", refuses.URL, "all", false, "", "403 Forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("BERTH_REQUIRE", c.declared)
			var out bytes.Buffer
			ran := false
			err := check(t.Context(), c.db, &out, func() error { ran = true; return found })
			text := ""
			if err != nil {
				text = err.Error()
			}
			if ran != c.ran || !strings.Contains(out.String(), c.out) || (c.err == "") != (err == nil) || !strings.Contains(text, c.err) {
				t.Errorf("ran %t, printed %q, error %v; want %t, %q, %q", ran, &out, err, c.ran, c.out, c.err)
			}
		})
	}
}

// TestSilentDatabase: the check does not wait for a database that does not answer, because `make
// verify` is quick.
func TestSilentDatabase(t *testing.T) {
	t.Setenv("BERTH_REQUIRE", "")
	done := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-done:
		}
	}))
	defer silent.Close()
	defer close(done)
	var out bytes.Buffer
	start := time.Now()
	if err := check(t.Context(), silent.URL, &out, nil); err != nil || !strings.Contains(out.String(), "does not answer within 3s") {
		t.Errorf("check returned %v and printed %q", err, &out)
	}
	if took := time.Since(start); took > 3*patience {
		t.Errorf("it took %s", took)
	}
}
