package preload_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/preload"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

// slowRuntime is a runtime that lists an image only after some lookups.
type slowRuntime struct {
	runtimeapi.UnimplementedImageServiceServer
	without int64 // the number of lookups that do not find the image
	lookups atomic.Int64
}

func (r *slowRuntime) ImageStatus(context.Context, *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	if r.lookups.Add(1) <= r.without {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "x"}}, nil
}

// TestImageIsListedLater: containerd's CRI learns about an import from an event, which may arrive
// after the import has returned.
func TestImageIsListedLater(t *testing.T) {
	for _, c := range []struct {
		name    string
		without int64
		delay   time.Duration
		says    string
	}{
		{"at once", 0, 0, ""},
		{"never, and it would know", 1 << 60, 0, "image archive a holds no x:1"},
		{"later", 3, time.Minute, ""},
		{"never", 1 << 60, time.Millisecond, "does the archive hold it?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			runtimeapi.RegisterImageServiceServer(server, &slowRuntime{without: c.without})
			go server.Serve(listener)
			t.Cleanup(server.Stop)
			host := provisiontest.New()
			host.Sources["/a.tar"] = map[string]string{"a.tar": "layers"}
			loaded := 0
			host.Programs["load"] = func(provision.Command) ([]byte, error) { loaded++; return nil, nil }
			err = preload.Archive{
				Ref:   provision.AssetRef{Name: "a", Sources: []string{"/a.tar"}, Digest: "sha256:1"},
				Names: []string{"x:1"}, Load: []string{"load"}, CRI: "unix://" + path, Delay: c.delay,
			}.Apply(t.Context(), host)
			if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			if loaded != 1 {
				t.Errorf("the archive was loaded %d times", loaded)
			}
		})
	}
}
