package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/engine/docker/translate"
)

// refusals are what the engine docker refuses of a row.
func (t *table) refusals(r row) []translate.Refusal {
	paths, _ := r.paths() // check reports the error
	var found []translate.Refusal
	for _, refusal := range translate.Refusals() {
		if refused := t.refused(refusal); slices.ContainsFunc(paths, func(path string) bool { return translate.Covers(refused, path) }) {
			found = append(found, refusal)
		}
	}
	return found
}

// isRefused reports whether the engine docker refuses all fields of a row, with any version of the API.
func (t *table) isRefused(r row) bool {
	paths, _ := r.paths() // check reports the error
	refusals := t.refusals(r)
	return !slices.ContainsFunc(paths, func(path string) bool {
		return !slices.ContainsFunc(refusals, func(refusal translate.Refusal) bool {
			return refusal.From == "" && !refusal.Partly && translate.Covers(t.refused(refusal), path)
		})
	})
}

// dockerVerdict is how the engine docker handles a row.
func (t *table) dockerVerdict(r row) string {
	if r.later {
		return "Unimplemented"
	}
	words := []string{"✔"}
	if t.isRefused(r) {
		words = nil
	}
	for _, refusal := range t.refusals(r) {
		text := "refused: " + refusal.Request
		if refusal.From != "" {
			text += " before API " + refusal.From
		}
		words = append(words, text+". "+strings.ToUpper(refusal.Reason[:1])+refusal.Reason[1:]+".")
	}
	return strings.Join(words, "<br>")
}

// The reasons why a test does not run over the engine docker in `make e2e`.
const (
	ownEngine   = "it starts a Docker Engine of its own, whatever BERTH_ENGINE says"
	noEngine    = "it is about the machine or a command, and runs no container through an engine"
	byHand      = "it starts daemons by hand, with the native engine"
	supervisors = "it is about the supervisor, the keeper and their files"
	ownStore    = "it is about the directory of berth's own image store"
	ownRuntime  = "it attacks the OCI runtime, which is the engine's own"
	labels      = "it is about labels of SELinux, which the engine sets"
	podInit     = "it is about berth's own init of a pod; the engine's is the pause container, which has nothing of the host"
	ownVolumes  = "it is about the volumes of images that berth makes; the engine's are its anonymous volumes"
	hostDisks   = "it fills what the host has, and the engine with it"
)

// withoutDocker are the tests that do not run over the engine docker, with the reasons.
func withoutDocker() map[string]string {
	reasons := map[string]string{}
	for reason, names := range map[string][]string{
		ownEngine: {
			"TestAdoption", "TestAdoptionIsKilled", "TestAdoptedPodsOverReboot", "TestAdoptionFromCRIDockerd", "TestStartOverABadDockerEngine",
			"TestContainersByHand", "TestContainersByHandUnseen", "TestPauseContainersByHand", "TestCrashOverDocker", "TestDockerEngineIsKilled",
			"TestDockerEngineIsStopped", "TestBerthIsKilledOverDocker", "TestEngineChanges", "TestInfoOfAnEngineThatIsReplaced",
		},
		noEngine: {
			"TestNodeKeepsItself", "TestNodeGivesUp", "TestNodeOfARoot", "TestNodeDrift", "TestNodeKeepsGPUs", "TestNodeScript",
			"TestNodeScriptOfPackages", "TestNodeCloudInit", "TestNodeOfPackagedContainerd", "TestNodeOfPackagedDocker", "TestNodeSwitch",
			"TestNodeOfBerth", "TestBuildImageInterrupted", "TestClusterUnit", "TestWrongFlagsAreNamed", "TestBadConfigurationNamesEveryFaultWithItsLine",
		},
		byHand: {
			"TestServeNeedsRoot", "TestServeTwice", "TestSocketPlaces", "TestInterruptedStarts", "TestReload", "TestHangupAtTheStart", "TestReadOnlyRoot",
		},
		supervisors: {
			"TestServeWithoutASupervisor", "TestCrash", "TestUpgradeUnderLoad", "TestDaemonStartsAKeeperAnew", "TestStateDirectory", "TestProbesOfAHundredContainers", "TestTimerSlackOfContainers",
			"TestLeak", "TestSessionsLeaveNothing", "TestAStartReadsTheSameHoweverManyPodsRun", "TestARestartReadsLittleOfEachPod",
			"TestDoctorRepairsLeaks", "TestDoctorWhileBerthIsDown", "TestDoctorWhilePodsComeAndGo", "TestDoctorWhilePodsComeAndGoLong",
		},
		podInit:    {"TestPodInitIsNoWayToTheHost", "TestPodInitServesItsPod"},
		ownStore:   {"TestPreloadedImages", "TestWritableLimit", "TestWritableLimitWithoutQuotas", "TestPodsOfCopies", "TestCopiesInUserNamespaces", "TestPoolsOff", "TestDaemonStartsWithADamagedImageStore", "TestCheckOfImagesIsAJob", "TestPodsAreListedBeforeTheImageStoreIsChecked", "TestDaemonServesBeforeItsBacklogIsRemoved", "TestPullsOfAPrivateImageAtOnce", "TestPullAfterTheDaemonIsKilled", "TestJobsOfPulls"},
		ownVolumes: {"TestImageDefinedVolumes"},
		ownRuntime: {"TestPathsThatChangeWhileAContainerIsMade"},
		labels: {
			"TestSELinuxKeepsPodsApart", "TestSELinuxSharedVolumes", "TestSELinuxPodRun", "TestSELinuxCategoryRange", "TestSELinuxLevelsInAPod",
			"TestSELinuxInExecs", "TestSELinuxLayers",
		},
		hostDisks: {"TestFullRootDisk", "TestFullStateDirectory", "TestFullProcessTable"},
	} {
		for _, name := range names {
			reasons[name] = reason
		}
	}
	return reasons
}

// dockerTests is the pattern of the tests that run over the engine docker, for -run: all but those that
// have a reason not to. `make e2e` runs them, and so those of all rows, which is what the column of
// docs/cri-coverage.md promises.
func dockerTests(found testSources) string {
	var names []string
	for name := range found {
		if withoutDocker()[name] == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return "^(" + strings.Join(names, "|") + ")$"
}

// checkWithoutDocker returns what is wrong with the list of tests that do not run over the engine
// docker: a name that no test has, or a row that promises what is not run.
func checkWithoutDocker(without map[string]string, tables []table, found testSources) (faults []error) {
	for _, name := range slices.Sorted(maps.Keys(without)) {
		if _, ok := found[name]; !ok {
			faults = append(faults, fmt.Errorf("there is no test %s, which does not run over the engine docker", name))
		}
	}
	for _, t := range tables {
		for _, r := range t.rows {
			if why := without[r.test]; why != "" {
				faults = append(faults, fmt.Errorf("%s %q: %s does not run over the engine docker: %s", t.what, r.name, r.test, why))
			}
		}
	}
	return faults
}
