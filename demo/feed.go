package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/geo"
)

// store is what the feed of one region writes to and reads from. local says that a node of that region served the call.
type store interface {
	// report writes a flight's status and one position of its track, together or not at all.
	report(ctx context.Context, f *flight, now time.Time) (local bool, err error)
	// look reads a flight's status.
	look(ctx context.Context, id string) (local bool, err error)
}

const (
	// FlightsDefault is how many flights are in the air at once.
	FlightsDefault = 300
	// FlightsMax bounds them: all run on one machine.
	FlightsMax = 10_000
	// callersPerRegion is how many calls of one region's feed are under way at most.
	callersPerRegion = 32
	// readsPerWrite keeps reads in proportion, and localReads is the part of them that asks for a flight over the
	// reader's own region.
	readsPerWrite = 2
	localReads    = 0.8
	// feedTick is how often the feed looks for flights that are due.
	feedTick = 50 * time.Millisecond
	// callTimeout bounds one call of the feed.
	callTimeout = 10 * time.Second
)

// feed plays flights over the regions, through one store for each.
type feed struct {
	regions []Region
	places  []rhumb.Point
	stores  []store
	meters  []*meter
	rng     *rand.Rand // of the goroutine that runs the feed

	mu   sync.Mutex // guards over
	over [][]string // for each region the ids of the flights over it that were written

	flights []*flown
}

// flown is a flight and when it reports next. busy keeps its reports in order: the next one waits for the one before.
type flown struct {
	*flight
	due  time.Time
	busy chan struct{} // holds a token while a report is under way
}

func newFeed(regions []Region, stores []store, meters []*meter, flights int, seed uint64, now time.Time) *feed {
	f := &feed{
		regions: regions, stores: stores, meters: meters, over: make([][]string, len(regions)),
		rng: rand.New(rand.NewPCG(seed, 0)),
	}
	for _, r := range regions {
		f.places = append(f.places, r.location)
	}
	for range flights {
		f.flights = append(f.flights, f.launch(now, f.rng.Float64()*(1-2*climbing)))
	}
	return f
}

func (f *feed) launch(now time.Time, ahead float64) *flown {
	fl := newFlight(f.rng, now, ahead)
	return &flown{flight: fl, due: now.Add(time.Duration(f.rng.Int64N(int64(fl.every)))), busy: make(chan struct{}, 1)}
}

// run plays until ctx ends, and returns when no call is under way.
func (f *feed) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	slots := make([]chan struct{}, len(f.regions))
	for i := range slots {
		slots[i] = make(chan struct{}, callersPerRegion)
	}
	// start makes a call of a region's feed, unless as many as may be are under way.
	start := func(region int, call func()) bool {
		select {
		case slots[region] <- struct{}{}:
		default:
			return false
		}
		calls.Go(func() {
			call()
			<-slots[region]
		})
		return true
	}
	tick := time.NewTicker(feedTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			f.step(ctx, now, start)
		}
	}
}

// step starts the reports that are due, and the reads that go with them.
func (f *feed) step(ctx context.Context, now time.Time, start func(region int, call func()) bool) {
	for i, fl := range f.flights {
		if now.Before(fl.due) {
			continue
		}
		if fl.landed(now) {
			f.forget(fl.id)
			f.flights[i] = f.launch(now, 0)
			continue
		}
		region := geo.Nearest(fl.place(now), f.places)
		select {
		case fl.busy <- struct{}{}:
		default:
			continue
		}
		if !start(region, func() { f.report(ctx, fl, region) }) {
			<-fl.busy
			continue
		}
		fl.due = now.Add(fl.every)
		for range readsPerWrite {
			if id := f.pick(region); id != "" {
				start(region, func() { f.look(ctx, id, region) })
			}
		}
	}
}

func (f *feed) report(ctx context.Context, fl *flown, region int) {
	defer func() { <-fl.busy }()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin := time.Now()
	local, err := f.stores[region].report(ctx, fl.flight, begin)
	if ctx.Err() != nil && err != nil && context.Cause(ctx) == context.Canceled {
		return // the demo ends
	}
	f.meters[region].wrote(time.Since(begin), local, err)
	if err != nil {
		return
	}
	fl.reported++
	if fl.reported == 1 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.over[region] = append(f.over[region], fl.id)
	}
}

func (f *feed) look(ctx context.Context, id string, region int) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begin := time.Now()
	local, err := f.stores[region].look(ctx, id)
	if ctx.Err() != nil && err != nil && context.Cause(ctx) == context.Canceled {
		return
	}
	f.meters[region].read(time.Since(begin), local, err)
}

// pick chooses a flight to read: most often one over the reader's region, else any. "" when there is none yet.
func (f *feed) pick(region int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := f.over[region]
	if f.rng.Float64() >= localReads || len(from) == 0 {
		from = f.over[f.rng.IntN(len(f.over))]
	}
	if len(from) == 0 {
		return ""
	}
	return from[f.rng.IntN(len(from))]
}

// forget drops a flight that landed from those that are read.
func (f *feed) forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, ids := range f.over {
		if at := slices.Index(ids, id); at >= 0 {
			f.over[i] = slices.Delete(ids, at, at+1)
		}
	}
}

// aloft counts the flights that are over each region.
func (f *feed) aloft() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := make([]int, len(f.over))
	for i, ids := range f.over {
		counts[i] = len(ids)
	}
	return counts
}

// rowName names a position of a flight's track; names sort as the positions follow each other.
func rowName(f *flight, now time.Time) string {
	return fmt.Sprintf("%s/%d/%06d", f.id, now.Unix(), f.reported)
}
