//go:build integration && e2e

package local

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/imagetest"
)

const (
	manyPulls   = 200
	largeBlob   = 1 << 20
	chunkOfSend = 32 << 10
	// continued is the least that berth continues. mayBeLost is what an interruption may lose of a blob: nearly this much, and
	// what is under way.
	continued = 256 << 10
	mayBeLost = continued + 512<<10
)

// How a batch of pulls is interrupted.
const (
	nothing = iota
	// blip breaks one connection: the pull goes on.
	blip
	// outage breaks all connections until the pulls have failed.
	outage
	// kill kills the process with SIGKILL.
	kill
)

// flaky is a registry that sends slowly, counts what it sends of each blob, and interrupts after some bytes.
type flaky struct {
	imagetest.Registry
	mu sync.Mutex
	// sent are the bytes of each blob, and broken how often a transfer of it was interrupted.
	sent   map[string]int64
	broken map[string]int
	how    int
	left   int64
	away   bool
	kill   chan struct{}
	// transfers are the answers with a blob that have not ended.
	transfers sync.WaitGroup
}

// interrupt has the registry interrupt after so many bytes. What it returns is closed when the process is to be killed.
func (f *flaky) interrupt(how int, after int64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.how, f.left, f.away, f.kill = how, after, false, make(chan struct{})
	return f.kill
}

// ServeHTTP implements http.Handler.
func (f *flaky) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	f.mu.Lock()
	away := f.away
	f.mu.Unlock()
	if away {
		panic(http.ErrAbortHandler)
	}
	repository, blob, ok := strings.Cut(req.URL.Path, "/blobs/")
	if !ok || repository == "" {
		f.Registry.ServeHTTP(w, req)
		return
	}
	f.transfers.Add(1)
	defer f.transfers.Done()
	f.Registry.ServeHTTP(&slowWriter{w, f, blob}, req)
}

// count counts bytes of a blob that are about to be sent, and returns whether the connection breaks in their place.
func (f *flaky) count(blob string, bytes int64) (breaks bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left -= bytes
	if f.left <= 0 {
		switch f.how {
		case kill:
			close(f.kill)
		case outage:
			f.away = true
		case blip:
			f.broken[blob]++
			breaks = true
		}
		f.how = nothing
	}
	if breaks = breaks || f.away; !breaks {
		f.sent[blob] += bytes
	}
	return breaks
}

func (f *flaky) noteBroken(blob string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken[blob]++
}

// now is what was sent of each blob. No pull runs.
func (f *flaky) now() map[string]int64 {
	f.transfers.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.sent)
}

type slowWriter struct {
	http.ResponseWriter
	f    *flaky
	blob string
}

// Write implements io.Writer.
func (w *slowWriter) Write(data []byte) (written int, err error) {
	for piece := range slices.Chunk(data, chunkOfSend) {
		if w.f.count(w.blob, int64(len(piece))) {
			panic(http.ErrAbortHandler)
		}
		n, err := w.ResponseWriter.Write(piece)
		written += n
		if err != nil {
			return written, err
		}
		w.ResponseWriter.(http.Flusher).Flush()
		time.Sleep(200 * time.Microsecond)
	}
	return written, nil
}

// manyImages are images of 2 to 6 layers. Some layers are large, and some are shared.
type manyImages struct {
	refs []string
	// files are those of each image by path, with the seed of their content, and blobs those of its layers.
	files []map[string]int
	blobs [][]string
	// layers are the sizes of all blobs of layers.
	layers map[string]int64
}

// contentOf is a text of a seed that nothing else has.
func contentOf(seed int) []byte {
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	size := 2_000 + random.IntN(100_000)
	if random.IntN(4) == 0 {
		size = 3*largeBlob/2 + random.IntN(largeBlob)
	}
	text := make([]byte, size)
	for i := range text {
		text[i] = 'a' + byte(random.IntN(26))
	}
	return text
}

func pushMany(t *testing.T, f *flaky, host string, random *rand.Rand) *manyImages {
	t.Helper()
	m := &manyImages{layers: map[string]int64{}}
	const shared = 40
	own := shared
	for i := range manyPulls {
		var spec imagetest.Spec
		files := map[string]int{}
		for l := range 2 + random.IntN(5) {
			seed := random.IntN(shared)
			if l%2 == 0 {
				seed, own = own, own+1
			}
			path := fmt.Sprint("layer-", seed)
			if _, ok := files[path]; ok {
				continue
			}
			files[path] = seed
			spec.Layers = append(spec.Layers, imagetest.Layer{{Path: path, Content: contentOf(seed)}})
		}
		img := build(t, spec)
		name := fmt.Sprint("image", i)
		f.Push(name, "1", img)
		m.refs, m.files = append(m.refs, host+"/"+name+":1"), append(m.files, files)
		var blobs []string
		for _, layer := range img.Layers {
			m.layers[layer.Digest.String()] = layer.Size
			blobs = append(blobs, layer.Digest.String())
		}
		m.blobs = append(m.blobs, blobs)
	}
	return m
}

// allowed is how many bytes of each blob the registry may have sent at the end: what it has sent, and what the store lacks.
// It is called while no pull runs.
func (m *manyImages) allowed(t *testing.T, cfg Config, sent map[string]int64) map[string]int64 {
	t.Helper()
	has := map[string]int64{}
	ingests, err := filepath.Glob(filepath.Join(cfg.Root, "content/ingest/*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range ingests {
		ref, _ := os.ReadFile(filepath.Join(dir, "ref")) // a kill may come before it is written
		_, blob, ok := strings.Cut(string(ref), "download-")
		data, err := os.Stat(filepath.Join(dir, "data"))
		if total, _ := os.ReadFile(filepath.Join(dir, "total")); ok && err == nil && (data.Size() >= continued || string(total) == strconv.FormatInt(data.Size(), 10)) {
			has[blob] = data.Size()
		}
	}
	may := map[string]int64{}
	for blob, size := range m.layers {
		if _, err := os.Stat((database.Paths{Root: cfg.Root}).BlobPath(digest.Digest(blob))); err == nil {
			has[blob] = size
		}
		may[blob] = sent[blob] + size - has[blob]
	}
	return may
}

// TestTwoHundredPulls pulls images of several layers, up to two side by side, and interrupts the pulls at random moments:
// it kills the process, breaks one connection, or breaks all until the pulls fail. Each later pull succeeds. The registry
// sends nothing again of a layer that was complete, of one that was cut off only what the store had not written, and less than
// twice the size of each large one in all. At the end all files are right, and nothing is left after the removal of the images.
func TestTwoHundredPulls(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BERTH_CRASH_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("BERTH_CRASH_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	f := &flaky{sent: map[string]int64{}, broken: map[string]int{}}
	server := httptest.NewUnstartedServer(f)
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if tcp, ok := conn.(*net.TCPConn); ok && state == http.StateNew {
			_ = tcp.SetWriteBuffer(chunkOfSend)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	m := pushMany(t, f, strings.TrimPrefix(server.URL, "http://"), random)
	p := &puller{t: t, cfg: testConfig(t), f: f, m: m, random: random, counts: map[string]int{}, may: maps.Clone(m.layers)}
	for first := 0; first < manyPulls; {
		next := min(first+1+random.IntN(2), manyPulls)
		p.batch(first, next)
		first = next
	}
	p.stop()
	p.verifyCounts()
	p.verifyContent()
}

// puller has a worker pull images, and interrupts it.
type puller struct {
	t      *testing.T
	cfg    Config
	f      *flaky
	m      *manyImages
	random *rand.Rand
	// w is the worker, nil if none runs; in is its input.
	w  *worker
	in *os.File
	// counts are for the log, and may is allowed after the last interruption.
	counts map[string]int
	may    map[string]int64
}

// batch pulls images until they are there. Nothing interrupts the third attempt.
func (p *puller) batch(first, next int) {
	p.t.Helper()
	refs := p.m.refs[first:next]
	for attempt, ways := range [][]int{{kill, kill, outage, blip}, {kill, outage, nothing, nothing}, {nothing}} {
		before := p.f.now()
		missing := int64(1)
		for _, blob := range slices.Concat(p.m.blobs[first:next]...) {
			missing += max(0, p.m.layers[blob]-before[blob])
		}
		if p.pull(refs, ways[p.random.IntN(len(ways))], 1+p.random.Int64N(missing)) {
			p.counts[fmt.Sprint("complete at attempt ", attempt+1)]++
			return
		}
		sent := p.f.now()
		p.may = p.m.allowed(p.t, p.cfg, sent)
		for blob, bytes := range sent {
			if bytes > before[blob] && p.may[blob] > bytes {
				p.f.noteBroken(blob)
			}
		}
	}
	p.t.Fatalf("%v are not pulled by an attempt that nothing interrupts", refs)
}

// pull has the worker pull images, and returns whether all are pulled. It is interrupted after so many bytes.
func (p *puller) pull(refs []string, how int, after int64) (all bool) {
	p.t.Helper()
	p.start()
	killed := p.f.interrupt(how, after)
	delay := time.Duration(p.random.Int64N(int64(30 * time.Millisecond)))
	if _, err := p.in.WriteString(strings.Join(refs, " ") + "\n"); err != nil {
		p.t.Fatal(err)
	}
	p.counts["pulls"] += len(refs)
	ended, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stop)
		select {
		case <-killed:
			time.Sleep(delay) // the last bytes may have to be written, unpacked and recorded yet
			_ = p.w.cmd.Process.Kill()
		case <-ended:
		}
	}()
	pulled, done := 0, false
	for !done && p.w.lines.Scan() {
		line := p.w.lines.Text()
		switch {
		case line == "done":
			done = true
		case strings.HasPrefix(line, "pulled "):
			pulled++
		case how != outage:
			p.t.Errorf("a pull fails: %s", line)
		}
	}
	close(ended)
	<-stop
	if !done || !p.alive() {
		p.counts["kills"]++
		p.end()
	} else if pulled < len(refs) {
		p.counts["outages"]++
	}
	return pulled == len(refs)
}

// alive reports whether nobody has killed the worker.
func (p *puller) alive() bool {
	select {
	case <-p.f.kill:
		return false
	default:
		return true
	}
}

func (p *puller) start() {
	p.t.Helper()
	if p.w != nil {
		return
	}
	out, in, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.in = in
	p.w = startWorkerWith(p.t, p.cfg, pullWorkerArg, "-", out)
	out.Close()
}

// end reaps a worker that ends.
func (p *puller) end() {
	p.in.Close()
	for p.w.lines.Scan() {
		continue
	}
	_ = p.w.cmd.Wait()
	p.w = nil
}

func (p *puller) stop() {
	if p.w != nil {
		p.end()
	}
}

// verifyCounts looks at what the registry has sent.
func (p *puller) verifyCounts() {
	t, sent := p.t, p.f.now()
	var total, all int64
	worst, once := 0.0, 0.0
	for blob, size := range p.m.layers {
		total, all = total+size, all+sent[blob]
		if sent[blob] > p.may[blob] {
			t.Errorf("layer %s of %d bytes: %d bytes were sent, %d after the last interruption were enough", blob, size, sent[blob], p.may[blob])
		}
		if size < largeBlob {
			continue
		}
		ratio := float64(sent[blob]) / float64(size)
		worst = max(worst, ratio)
		broken := p.f.broken[blob]
		if broken <= 1 {
			once = max(once, ratio)
		}
		if bound := size + int64(broken)*mayBeLost; sent[blob] > bound || sent[blob] >= 2*size {
			t.Errorf("layer %s of %d bytes, interrupted %d times: %d bytes were sent", blob, size, broken, sent[blob])
		}
	}
	t.Logf("%v; %d layers of %d MiB, %.2f times as much was sent; of a large layer at most %.2f times, %.2f times if it was interrupted once at most",
		p.counts, len(p.m.layers), total>>20, float64(all)/float64(total), worst, once)
	if p.counts["kills"] < manyPulls/10 || p.counts["outages"] < manyPulls/20 {
		t.Error("hardly any pull was interrupted: the test tests nothing")
	}
}

// verifyContent compares all files, and removes all images.
func (p *puller) verifyContent() {
	t, ctx := p.t, p.t.Context()
	s := open(t, p.cfg)
	for i, ref := range p.m.refs {
		found, err := s.Get(ctx, ref)
		if err != nil {
			t.Fatal(err)
		}
		mounted, err := s.Prepare(ctx, image.RootfsSpec{Key: "verify", ImageID: found.ID})
		if err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(mounted.Path)
		if err != nil || len(entries) < len(p.m.files[i]) {
			t.Errorf("%s has %d files, %v", ref, len(entries), err)
		}
		for path, seed := range p.m.files[i] {
			data, err := os.ReadFile(filepath.Join(mounted.Path, path))
			if err != nil || string(data) != string(contentOf(seed)) {
				t.Errorf("%s: file %s is wrong: %v", ref, path, err)
			}
		}
		if err := s.Release(ctx, "verify"); err != nil {
			t.Error(err)
		}
	}
	for _, ref := range p.m.refs {
		if err := s.Remove(ctx, ref); err != nil {
			t.Error(err)
		}
	}
	use, err := s.DiskUse(ctx)
	if err != nil || use.Total > 0 {
		t.Errorf("after the removal of all images the store has %d bytes, %v", cmp.Or(use, &image.DiskUse{}).Total, err)
	}
	s.Close()
	assertEmpty(t, s)
}
