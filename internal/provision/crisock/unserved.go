package crisock

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Unserved reports whether an error says that the server at the socket does not serve CRI. A
// containerd that could not load its CRI plugin answers so until it is restarted.
func Unserved(err error) bool { return status.Code(err) == codes.Unimplemented }

// WhyUnserved is the error about a containerd that serves no CRI, with the lines of its log about
// the plugin. It wraps errs.Unsupported: only a restart can help.
func WhyUnserved(ctx context.Context, host provision.Host, unit string) error {
	log, err := host.Run(ctx, provision.Command{
		Args: []string{"journalctl", "--no-pager", "-q", "-b", "-o", "cat", "-n", "1000", "-u", unit},
	})
	why := notLoaded(string(log))
	switch {
	case err != nil:
		why = fmt.Sprintf("its log cannot be read: %v", err)
	case why == "":
		why = "its log names no plugin of CRI that failed; is it disabled (disabled_plugins)?"
	}
	return fmt.Errorf("it answers and serves no CRI: %s: %w", why, errs.Unsupported)
}

var (
	criPlugin = regexp.MustCompile(`\bio\.containerd\.(grpc\.v1\.cri|cri\.v1|podsandbox|snapshotter\.v1\.overlayfs)\b`)
	logError  = regexp.MustCompile(`error=("(?:[^"\\]|\\.)*")`)
	logPlugin = regexp.MustCompile(`\bio\.containerd\.[a-z]+\.v1\.[a-z]+`)
)

// notLoaded lists the CRI plugins that the last start of a containerd did not load, and why.
func notLoaded(log string) string {
	if i := strings.LastIndex(log, `msg="starting containerd"`); i >= 0 {
		log = log[i:]
	}
	var list []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "failed to load plugin") || !criPlugin.MatchString(line) {
			continue
		}
		why := strings.TrimSpace(line)
		if m := logError.FindStringSubmatch(line); m != nil {
			if text, err := strconv.Unquote(m[1]); err == nil {
				why = text
			}
			rest := strings.Replace(line, m[0], "", 1)
			why = logPlugin.FindString(rest) + ": " + why
		}
		list = append(list, why)
	}
	return strings.Join(list, "; ")
}
