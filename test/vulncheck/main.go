// Command vulncheck looks for known vulnerabilities that the code reaches, with govulncheck. Those of
// allowed.txt are reported with their reason, and are no failure. If the database of vulnerabilities
// does not answer, it prints the reason and skips the check. It fails
// in this case if BERTH_REQUIRE declares the ability "vulndb". GOVULNDB names another database.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/require"
)

// patience is how long the database has to answer: `make verify` is quick.
const patience = 3 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db := os.Getenv("GOVULNDB")
	if db == "" {
		db = "https://vuln.go.dev"
	}
	err := check(ctx, db, os.Stdout, func() error { return scan(ctx, db, os.Args[1:], os.Stdout) })
	if err != nil {
		fmt.Fprintf(os.Stderr, "vulncheck: %v\n", err)
		os.Exit(1) //nolint:gocritic // stop has nothing left to do
	}
}

// scan runs govulncheck and reports what it finds. Only what is not allowed is an error.
func scan(ctx context.Context, db string, args []string, out io.Writer) error {
	allow, err := parseAllowed(allowedText)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=tools/go.mod", "govulncheck", "-format", "json", "-db", db}, args...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("govulncheck: %w", err)
	}
	found, err := readFindings(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return report(out, found, allow)
}

// check runs govulncheck if the database answers.
func check(ctx context.Context, db string, out io.Writer, govulncheck func() error) error {
	if err := reachable(ctx, db); err != nil {
		if require.Declared(require.AbilityVulnDB) {
			return fmt.Errorf("ability %q is declared by BERTH_REQUIRE but missing: %w", require.AbilityVulnDB, err)
		}
		_, err = fmt.Fprintf(out, "vulncheck: skipped: needs ability %q: %v\n", require.AbilityVulnDB, err)
		return err
	}
	return govulncheck()
}

// reachable requests the index of the database. A database of files must have it, too.
func reachable(ctx context.Context, db string) error {
	if strings.HasPrefix(db, "file://") {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(db, "/")+"/index/db.json", nil)
	if err != nil {
		return fmt.Errorf("%s is not the URL of a database: %w", db, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s does not answer within %s", db, patience)
	}
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", db, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", db, resp.Status)
	}
	return nil
}
