//go:build integration

package local

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
)

// dockerRegistry starts Debian's registry on the loopback address.
func dockerRegistry(t *testing.T) (host string) {
	t.Helper()
	dir := t.TempDir()
	host, stop := startDockerRegistry(t, "http", func(host string) string {
		return fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, host)
	})
	t.Cleanup(stop)
	return host
}

// startDockerRegistry starts Debian's registry with a configuration, and returns once its port answers.
func startDockerRegistry(t *testing.T, scheme string, config func(host string) string) (host string, stop func()) {
	t.Helper()
	binary := require.Binary(t, "docker-registry")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host = listener.Addr().String()
	listener.Close()
	path := filepath.Join(t.TempDir(), "config.yml")
	if err := os.WriteFile(path, []byte(config(host)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "serve", path)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	stop = func() { _ = cmd.Process.Kill(); <-ended }
	// A server that demands a certificate of its clients has answered, too.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // it only waits
	var refused *net.OpError
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp, err := client.Get(scheme + "://" + host + "/v2/")
		if err == nil {
			resp.Body.Close()
		}
		if err == nil || !errors.As(err, &refused) || refused.Op != "dial" {
			return host, stop
		}
		select {
		case <-ended:
			t.Fatalf("the registry has ended: %s", output.String())
		default:
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("the registry does not answer: %v", err)
		}
	}
}

// upload puts an image into a registry by its HTTP interface.
func upload(t *testing.T, host, repository, tag string, img *imagetest.Image) {
	t.Helper()
	base := fmt.Sprintf("http://%s/v2/%s", host, repository)
	send := func(method, address, mediaType string, data []byte) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(context.Background(), method, address, bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", mediaType)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode > 299 {
			t.Fatalf("%s %s: %s", method, address, resp.Status)
		}
		return resp
	}
	for _, blob := range append([]imagetest.Blob{img.Config}, img.Layers...) {
		begun := send(http.MethodPost, base+"/blobs/uploads/", "", nil)
		location, err := begun.Location()
		if err != nil {
			t.Fatal(err)
		}
		query := location.Query()
		query.Set("digest", blob.Digest.String())
		location.RawQuery = url.Values(query).Encode()
		send(http.MethodPut, location.String(), "application/octet-stream", blob.Data)
	}
	send(http.MethodPut, base+"/manifests/"+tag, img.Manifest.MediaType, img.Manifest.Data)
}

func TestPullFromARealRegistry(t *testing.T) {
	ctx := context.Background()
	host := dockerRegistry(t)
	img := build(t, layersOf(4, "gzip"))
	upload(t, host, "team/app", "v1", img)
	s := open(t, testConfig(t))
	id, err := s.Pull(ctx, host+"/team/app:v1", image.Auth{}, nil)
	if err != nil || id != img.ID() {
		t.Fatalf("%s, %v", id, err)
	}
	m, err := s.Prepare(ctx, image.RootfsSpec{Key: "c", ImageID: id})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(m.Path, "f3")); err != nil || len(data) != 50_000 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	if _, err := s.Pull(ctx, host+"/team/app@"+img.Manifest.Digest.String(), image.Auth{}, nil); err != nil {
		t.Error(err)
	}
}
