// Package store has the images of a host: it pulls, imports, exports, names and removes them,
// and finds them by their names. Root filesystems hold layers of it (see Acquire), which stay
// when their image is removed.
package store

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/image/background"
	"github.com/berthrun/berth/internal/image/database"
	"github.com/berthrun/berth/internal/image/downloads"
	"github.com/berthrun/berth/internal/image/layers"
	"github.com/berthrun/berth/internal/image/lost"
	"github.com/berthrun/berth/internal/image/progress"
	"github.com/berthrun/berth/internal/image/registry"
	"github.com/berthrun/berth/internal/image/snapshotters"
	"github.com/berthrun/berth/internal/keyed"
)

// PullRules say how images are pulled.
type PullRules struct {
	// RegistryConfigDirs are searched for <host>/hosts.toml, first one wins.
	RegistryConfigDirs []string
	// SearchRegistries are the hosts of the registries at which an image without a registry in its name is searched, in
	// this order; docker.io if empty.
	SearchRegistries []string
	// CredentialFiles are config files of docker with credentials of the node. Each entry is for the
	// host that it names, and is used where a pull has no credentials.
	CredentialFiles []string
	// NoProgressTimeout ends a pull whose registry sends nothing; 5 minutes if 0.
	NoProgressTimeout time.Duration
	// MaxConcurrentDownloads of one pull; 3 if 0.
	MaxConcurrentDownloads int
	// MaxTotalDownloads of all pulls together; any number if 0.
	MaxTotalDownloads int
	// DownloadRate is how many bytes of layers a second all pulls together download; any number if 0.
	DownloadRate int64
	// LayerConnections is how many requests for one layer run at a time; 1 if 0. With more, large layers are fetched in
	// parts of LayerPart bytes (8 MiB if 0). PartsMemory bounds what parts of all layers have in memory; 64 MiB if 0.
	LayerConnections       int
	LayerPart, PartsMemory int64
	// MaxLayer bounds the bytes of one layer's archive, unpacked; 128 GiB if 0.
	MaxLayer int64
	// DecryptionKeysDir has private keys that decrypt layers; see package decryption. "" for none.
	DecryptionKeysDir string
	// PolicyFile says which images may be used; see package policy. "" for all.
	PolicyFile string
	// PolicyDir has files that take its place for the pods of a namespace; see policy.FileOf. "" for none.
	PolicyDir string
	// LookasideDir has files that say where simple signatures are; see package lookaside.
	LookasideDir string
	// VerifierDir has programs that are asked whether an image may be used; see package verifier. "" for
	// none.
	VerifierDir string
	// UnnamedSignatures accepts signatures that name no repository.
	UnnamedSignatures bool
	// Platforms are those for which an archive's images are imported besides the node's; see image.ParsePlatform.
	Platforms []string
}

func (r PullRules) withDefaults() PullRules {
	r.NoProgressTimeout = cmp.Or(r.NoProgressTimeout, defaultNoProgressTimeout)
	r.MaxConcurrentDownloads = cmp.Or(r.MaxConcurrentDownloads, defaultDownloads)
	r.LayerPart = cmp.Or(r.LayerPart, defaultPart)
	r.PartsMemory = cmp.Or(r.PartsMemory, defaultPartsMemory)
	r.MaxLayer = cmp.Or(r.MaxLayer, defaultMaxLayer)
	return r
}

// SetPullRules makes other rules hold for pulls that begin from now on. The bounds of all downloads hold at once.
func (s *Store) SetPullRules(rules PullRules) {
	rules = rules.withDefaults()
	s.rules.Store(&rules)
	s.layers.SetMaxLayer(rules.MaxLayer)
	s.layers.SetDecryptionKeys(rules.DecryptionKeysDir)
	s.downloads.Configure(downloads.Limits{Places: rules.MaxTotalDownloads, Rate: rules.DownloadRate, Memory: rules.PartsMemory})
}

const (
	defaultNoProgressTimeout = 5 * time.Minute
	defaultDownloads         = 3
	defaultPart              = 8 << 20
	defaultPartsMemory       = 64 << 20
	defaultMaxLayer          = 128 << 30
)

// Config of a store.
type Config struct {
	DB     *database.DB
	Layers *layers.Unpacker
	// Snapshotters are the proxy snapshotters that pulls may name.
	Snapshotters *snapshotters.Set
	Background   *background.Group
	// Lost gets the images that Load cannot use.
	Lost *lost.List
	// PullRules hold until SetPullRules.
	PullRules PullRules
	// UserAgent is sent to registries.
	UserAgent string
	// Observer counts pulls, nil for nothing.
	Observer image.PullObserver
	// Jobs shows pulls, nil for nobody.
	Jobs image.Jobs
	// LeftoversChanged is called after a pull that may have a leftover; see TidyLeftovers. It must not block. nil for nobody.
	LeftoversChanged func()
	// RetryTime is how long a leftover stays when another image is removed: a kubelet removes images
	// when the disk is full. 10 minutes if 0.
	RetryTime time.Duration
	Log       *slog.Logger
}

// Store is the images of one root directory. It implements image.Store, image.Catalog and
// image.Explainer.
type Store struct {
	db         *database.DB
	layers     *layers.Unpacker
	proxies    *snapshotters.Set
	background *background.Group
	rules      atomic.Pointer[PullRules]
	userAgent  string
	// leftoversChanged is that of Config, or does nothing.
	leftoversChanged func()
	retryTime        time.Duration
	log              *slog.Logger

	pulls progress.Pulls
	// health is what pulls learn about endpoints.
	health registry.Health
	// warned has the warnings of hosts.toml files that the log has.
	warned sync.Map
	// downloads bounds what all pulls together download.
	downloads *downloads.Gate
	// blobs are held while one is fetched, evidence while that of an image is written.
	blobs, evidence keyed.Mutex
	lost            *lost.List
	// recorded is there from ReadRecords to Load.
	recorded *recorded
	// absent are the blobs of layers that Load has found missing.
	absent []digest.Digest
	// damaged is called with a blob whose file is found damaged; see OnDamage.
	damaged func(digest.Digest)

	// mu guards index, names, annotations and holds.
	mu    sync.RWMutex
	index map[string]*entry
	// names are the keys of all references (see names.Key) and to which id each belongs.
	names       map[string]string
	annotations annotations
	holds       holds
}

var (
	_ image.Store         = (*Store)(nil)
	_ image.TargetPuller  = (*Store)(nil)
	_ image.PlatformStore = (*Store)(nil)
	_ image.Catalog       = (*Store)(nil)
	_ image.Explainer     = (*Store)(nil)
	_ image.Admitter      = (*Store)(nil)
)

// New makes a store that shows no image before Load. Its database is open.
func New(cfg Config) *Store {
	s := &Store{
		db: cfg.DB, layers: cfg.Layers, proxies: cfg.Snapshotters, background: cfg.Background, lost: cfg.Lost, userAgent: cfg.UserAgent, leftoversChanged: cfg.LeftoversChanged, retryTime: cmp.Or(cfg.RetryTime, defaultRetryTime), log: cfg.Log,
		index: map[string]*entry{}, names: map[string]string{}, annotations: annotations{}, holds: newHolds(), damaged: func(digest.Digest) {},
		downloads: downloads.New(downloads.Limits{}),
	}
	if s.leftoversChanged == nil {
		s.leftoversChanged = func() {}
	}
	s.pulls.Observer, s.pulls.Jobs = cfg.Observer, cfg.Jobs
	s.SetPullRules(cfg.PullRules)
	return s
}

// Usage implements image.Store. Images and what containers write lie on one file system; the store does not know what they have
// written.
func (s *Store) Usage(ctx context.Context) (image.DiskUsage, error) {
	usage, err := s.db.Usage(ctx)
	if err != nil {
		return image.DiskUsage{}, err
	}
	bytes, inodes := s.proxies.OwnTotal()
	usage.Bytes, usage.Inodes = usage.Bytes+bytes, usage.Inodes+inodes
	return image.DiskUsage{Images: []image.Usage{usage}, Containers: []image.Usage{{Mountpoint: usage.Mountpoint, At: usage.At}}}, nil
}
