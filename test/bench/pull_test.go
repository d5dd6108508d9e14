package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// TestRegistryServesRanges: what a registry serves is what was stored, also in parts.
func TestRegistryServesRanges(t *testing.T) {
	dir := blobDir(t.TempDir())
	if err := dir.create(); err != nil {
		t.Fatal(err)
	}
	m := &material{programs: bytes.Repeat([]byte("program "), 1<<19), sources: [][]byte{[]byte("package a"), []byte("package b")}}
	for _, compression := range []string{"gzip", "zstd"} {
		layer, err := dir.store(m, layerSpec{"layer", 100_000, 0, compression})
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.storeImage(compression+":1", layer); err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(dir)
		defer server.Close()
		whole := get(t, server.URL+"/v2/"+compression+"/blobs/"+layer.desc.Digest.String(), "", http.StatusOK)
		if digest.FromBytes(whole) != layer.desc.Digest || int64(len(whole)) != layer.desc.Size {
			t.Errorf("%s: the blob is another one", compression)
		}
		if part := get(t, server.URL+"/v2/"+compression+"/blobs/"+layer.desc.Digest.String(), "bytes=10-19", http.StatusPartialContent); !bytes.Equal(part, whole[10:20]) {
			t.Errorf("%s: the part is another one", compression)
		}
		manifest := get(t, server.URL+"/v2/"+compression+"/manifests/1", "", http.StatusOK)
		if !bytes.Contains(manifest, []byte(layer.desc.Digest)) {
			t.Errorf("%s: the manifest is %s", compression, manifest)
		}
		get(t, server.URL+"/v2/"+compression+"/blobs/"+digest.FromString("other").String(), "", http.StatusNotFound)
		if plain := decompressed(t, compression, whole); digest.FromBytes(plain) != layer.diffID {
			t.Errorf("%s: the content is another one", compression)
		}
		if size, err := dir.sizeOf(compression+":1", compression+":1"); err != nil || size != layer.desc.Size {
			t.Errorf("%s: an image and itself have %d bytes, %v, want %d", compression, size, err, layer.desc.Size)
		}
	}
}

func get(t *testing.T, url, part string, want int) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if part != "" {
		req.Header.Set("Range", part)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		t.Fatalf("%s: %s, %v, want status %d", url, resp.Status, err, want)
	}
	return body
}

func decompressed(t *testing.T, compression string, data []byte) []byte {
	t.Helper()
	var r io.Reader
	var err error
	if compression == "zstd" {
		r, err = zstd.NewReader(bytes.NewReader(data))
	} else {
		r, err = gzip.NewReader(bytes.NewReader(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// TestCPUOfARuntime: the time of helpers counts, whether they run or have ended, and that of other processes does not.
func TestCPUOfARuntime(t *testing.T) {
	all := map[int]processTime{}
	for _, line := range []string{
		"10 (a daemon) S 1 0 0 0 0 0 0 0 0 0 100 20 30 4 20 0 1 0 0",
		"11 (helper (x)) S 10 0 0 0 0 0 0 0 0 0 5 0 0 0 20 0 1 0 0",
		"12 (of a helper) S 11 0 0 0 0 0 0 0 0 0 1 0 0 0 20 0 1 0 0",
		"13 (other) S 1 0 0 0 0 0 0 0 0 0 1000 0 0 0 20 0 1 0 0",
	} {
		var pid int
		if _, err := fmt.Sscan(line, &pid); err != nil {
			t.Fatal(err)
		}
		var err error
		if all[pid], err = parseStat(line); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := cpuOf(all, []int{10}); err != nil || got != 1600*time.Millisecond {
		t.Errorf("%v, %v, want 1.6s", got, err)
	}
	if _, err := cpuOf(all, []int{14}); err == nil {
		t.Error("a process that has ended has a time")
	}
}

// TestFastestInflaterIsTheFloor: the fastest one alone, and not one with tar, is the floor of the case with one layer.
func TestFastestInflaterIsTheFloor(t *testing.T) {
	own := &table{Peers: []peerInfo{{Name: "berth"}}}
	own.median("berth", "one layer", "s", 3)
	own.median(floorName, "inflate with a: one layer", "s", 2)
	own.median(floorName, "inflate with b: one layer", "s", 1.5)
	own.median(floorName, "inflate with b, and tar: one layer", "s", 1)
	noteFastest(own, []pullCase{{kind: "six", name: "six layers"}, {kind: singleCase, name: "one layer"}})
	var out strings.Builder
	own.print(&out, nil)
	if !strings.Contains(out.String(), "inflater is b:") || !strings.Contains(out.String(), "2.0x") {
		t.Errorf("the table is\n%s", &out)
	}
}
