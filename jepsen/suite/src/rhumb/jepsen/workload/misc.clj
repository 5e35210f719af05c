(ns rhumb.jepsen.workload.misc
  "A counter, batches over several keys, and names that clients of all regions create."
  (:require [jepsen.checker :as checker]
            [jepsen.generator :as gen]
            [jepsen.history :as h]
            [jepsen.random :as rand]
            [rhumb.jepsen.client :as rc]
            [rhumb.jepsen.db :as db])
  (:import (io.rhumb.jepsen Change Failure Value)))

(defn- value-of [v] (or (some-> (rc/text v) parse-long) 0))

(defrecord Counter []
  rc/Workload
  (answer [_ c test {:keys [f value] :as op}]
    (let [region (rc/home test)
          seen (try (rc/get-one c test region "counter") (catch Failure e e))]
      (cond
        (instance? Failure seen) (assoc op :type :fail :error [(.kind ^Failure seen) :read])
        (= f :read) (assoc op :type :ok :value (value-of seen))
        :else (do (rc/write! c test region
                             [(.ifSame ^Change (rc/put test "counter" (+ value (value-of seen))) seen)])
                  (assoc op :type :ok))))))

(defn counter-workload [opts]
  {:client (rc/client (->Counter))
   :generator (gen/mix [{:f :read} (fn [_ _] {:f :add :value (inc (rand/long 5))})])
   :final-generator (gen/each-thread {:f :read})
   ; The checker takes the completions of the nemesis for values of the counter.
   :checker (reify checker/Checker
              (check [_ test history opts]
                (checker/check (checker/counter) test (h/client-ops history) opts)))})

(def batch-keys 4)

(defrecord Batches []
  rc/Workload
  (answer [_ c test {:keys [f value] :as op}]
    (let [[g v] value
          names (mapv #(str "batch-" g "/" %) (range batch-keys))
          region (rc/home test)]
      (case f
        :write (do (rc/write! c test region (mapv #(rc/put test % v) names))
                   (assoc op :type :ok))
        :read (assoc op :type :ok :value [g (mapv (comp #(some-> % parse-long) rc/text) (rc/get-all c test region names))])))))

(defn lost-batches
  "Reads that show a batch although another one was acknowledged before they began, which itself began after the shown one was acknowledged; and
  reads that show a batch that was refused. Values are unique, and nil is the state before the first batch."
  [ops]
  (let [{:keys [stale shown refused]}
        (reduce
          (fn [{:keys [begins ends newest open] :as s} {:keys [process f type value index] :as op}]
            (let [[g v] value]
              (case [f type]
                [:write :invoke] (assoc-in s [:begins v] index)
                ; The newest begin of all acknowledged batches of the group.
                [:write :ok] (-> s (assoc-in [:ends v] index) (update-in [:newest g] (fnil max -1) (begins v)))
                [:write :fail] (update s :refused conj v)
                [:read :invoke] (assoc-in s [:open process] (newest g))
                [:read :ok] (let [value (first v)
                                  least (open process)
                                  end (if (nil? value) -1 (get ends value Long/MAX_VALUE))]
                              (cond-> (update s :shown conj (assoc (select-keys op [:index :value]) :shows value))
                                (and least (< end least)) (update :stale conj (select-keys op [:index :value]))))
                s)))
          {:begins {} :ends {} :newest {} :open {} :stale [] :shown [] :refused #{}} ops)]
    (into stale (comp (filter (comp refused :shows)) (map #(dissoc % :shows))) shown)))

(defn batch-checker
  "All keys of a batch always have the same value, and no acknowledged batch is lost."
  []
  (reify checker/Checker
    (check [_ test history opts]
      (let [reads (filter #(and (= :read (:f %)) (= :ok (:type %))) history)
            torn (remove #(apply = (second (:value %))) reads)
            lost (lost-batches (h/client-ops history))]
        {:valid? (and (boolean (seq reads)) (empty? torn) (empty? lost)) :reads (count reads)
         :torn (mapv #(select-keys % [:index :value]) (take 10 torn)) :torn-count (count torn)
         :lost (vec (take 10 lost)) :lost-count (count lost)}))))

(defn batch-workload [opts]
  (let [n (atom 0)]
    {:client (rc/client (->Batches))
     :generator (gen/mix [(fn [_ _] {:f :read :value [(rand/long 4) nil]})
                          (fn [_ _] {:f :write :value [(rand/long 4) (swap! n inc)]})])
     :final-generator (mapv (fn [g] {:f :read :value [g nil]}) (range 4))
     :checker (batch-checker)}))

(defn- find-name
  "Asks every region for a name, and returns the values that they have."
  [c test name]
  (keep (fn [region] (rc/text (rc/get-one c test region name))) (db/regions test)))

(defrecord Creations []
  rc/Workload
  (answer [_ c test {:keys [f value] :as op}]
    (let [[k v] value
          name (str "created-" k)
          found (try (vec (find-name c test name)) (catch Failure e e))]
      (cond
        ; A region that does not answer may have the name.
        (instance? Failure found) (assoc op :type :fail :error [(.kind ^Failure found) :search])
        (= f :read) (assoc op :type :ok :value [k (mapv parse-long found)])
        (seq found) (assoc op :type :fail :error :exists)
        :else (do (rc/write! c test (:home c) [(.ifAbsent ^Change (rc/put test name v))])
                  (assoc op :type :ok))))))

(defn creation-checker
  "A creation that begins after another one of the same name was acknowledged is refused, whatever the regions of the two. Creations in
  several regions at the same time may all succeed: that is documented. Every acknowledged creation is found at the end."
  []
  (reify checker/Checker
    (check [_ test history opts]
      (loop [ops (seq (h/client-ops history)) acked {} open {} made {} late []] ; the values of the nemesis are no pairs
        (if-let [{:keys [type f value process]} (first ops)]
          (let [[k v] value, more (next ops)]
            (cond
              (not= f :create) (recur more acked open made late)
              (= type :invoke) (recur more acked (assoc open process (contains? acked k)) made late)
              (= type :ok) (recur more (assoc acked k v) open (update made k (fnil conj #{}) v)
                                  (if (get open process) (conj late [k v]) late))
              :else (recur more acked open made late)))
          (let [finals (into {} (comp (filter #(and (= :read (:f %)) (= :ok (:type %)))) (map :value)) history)
                lost (into {} (filter (fn [[k vs]] (and (contains? finals k) (not (every? (set (finals k)) vs))))) made)
                unread (remove finals (keys made))]
            {:valid? (and (seq finals) (empty? late) (empty? lost) (empty? unread) true)
             :names (count made) :created (reduce + (map count (vals made)))
             :late (take 10 late) :lost (take 10 lost) :unread (take 10 unread)}))))))

(def creations-per-name 12)

(defn create-workload [opts]
  (let [n (atom -1)]
    {:client (rc/client (->Creations))
     :generator (fn [_ _] (let [i (swap! n inc)] {:f :create :value [(quot i creations-per-name) i]}))
     ; A delay, because the names are known at the end only.
     :final-generator (delay (mapv (fn [k] {:f :read :value [k nil]}) (range (inc (quot (max 0 @n) creations-per-name)))))
     :checker (creation-checker)}))
