package crisock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
)

// journal is a machine with logs of its units.
type journal struct {
	provision.Host
	log string
	err error
}

func (j journal) Run(_ context.Context, cmd provision.Command) ([]byte, error) {
	if line := strings.Join(cmd.Args, " "); !strings.HasPrefix(line, "journalctl ") || !strings.HasSuffix(line, " -u c.service") {
		return nil, fmt.Errorf("ran %s", line)
	}
	return []byte(j.log), j.err
}

func TestWhyUnserved(t *testing.T) {
	const (
		start = `time="2026-11-22T10:12:56Z" level=info msg="starting containerd" revision= version=v2.4.2` + "\n"
		noise = `time="2026-11-22T10:12:56Z" level=info msg="skip loading plugin" error="path must be btrfs: skip plugin" id=io.containerd.snapshotter.v1.btrfs type=io.containerd.snapshotter.v1` + "\n" +
			`time="2026-11-22T10:12:56Z" level=warning msg="failed to load plugin" error="devmapper not configured" id=io.containerd.snapshotter.v1.devmapper type=io.containerd.snapshotter.v1` + "\n"
		two = `time="2026-11-22T10:12:57Z" level=warning msg="failed to load plugin" error="failed to create CRI service: failed to create cni conf monitor for default: \"inotify\": too many open files" id=io.containerd.grpc.v1.cri type=io.containerd.grpc.v1` + "\n"
		one = `time="2026-11-22T10:12:57Z" level=warning msg="failed to load plugin io.containerd.grpc.v1.cri" error="invalid plugin config: no such handler"` + "\n"
		// A log in JSON format.
		json = `{"error":"no such handler","id":"io.containerd.cri.v1.runtime","level":"warning","msg":"failed to load plugin"}` + "\n"
	)
	for _, c := range []struct {
		name, log string
		err       error
		want      string
	}{
		{"containerd 2", start + noise + two, nil, `no CRI: io.containerd.grpc.v1.cri: failed to create CRI service: failed to create cni conf monitor for default: "inotify": too many open files: `},
		{"containerd 1", start + noise + one, nil, "no CRI: io.containerd.grpc.v1.cri: invalid plugin config: no such handler: "},
		{"json", start + json, nil, `"error":"no such handler","id":"io.containerd.cri.v1.runtime"`},
		{"an earlier start", start + two + start + one, nil, "no CRI: io.containerd.grpc.v1.cri: invalid plugin config: no such handler: "},
		{"nothing", start + noise, nil, "is it disabled (disabled_plugins)?"},
		{"no log", "", errors.New("no journal files were found"), "its log cannot be read: no journal files were found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := crisock.WhyUnserved(t.Context(), journal{log: c.log, err: c.err}, "c.service")
			if !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
		})
	}
}
