(ns rhumb.jepsen.workload.sets
  "Elements that are added and found again: under names, as inserts that the server names, and by scans during the writes."
  (:require [clojure.set :as set]
            [clojure.string :as str]
            [jepsen.checker :as checker]
            [jepsen.generator :as gen]
            [jepsen.history :as h]
            [rhumb.jepsen.client :as rc]
            [rhumb.jepsen.db :as db])
  (:import (io.rhumb.jepsen Failure)))

(defn- adds [] (map (fn [x] {:f :add :value x}) (range)))

(defn- element
  "The element of a record: the number in its name, which its value repeats. A record under another name is no element."
  [prefix v]
  (let [x (parse-long (rc/text v)), name (rc/record-name v)]
    (when (and (str/starts-with? name prefix) (= x (parse-long (subs name (count prefix))))) x)))

(defrecord Named []
  rc/Workload
  (answer [_ c test {:keys [f value] :as op}]
    (let [region (rc/home test)]
      (case f
        :add (do (rc/write! c test region [(rc/put test (str "set-" value) value)])
                 (assoc op :type :ok))
        :read (assoc op :type :ok
                     :value (into #{} (keep #(element "set-" %) (rc/scan-region c test region))))))))

(defn set-workload
  "Scans read the whole set, and each range is read at one moment after the scan began. So an element that was added before a scan began
  must be in it: set-full judges that, linearizable."
  [opts]
  {:client (rc/client (->Named))
   :generator (gen/reserve (max 1 (quot (:concurrency-number opts) 3)) (gen/repeat {:f :read}) (adds))
   :final-generator (gen/each-thread {:f :read})
   :checker (checker/set-full {:linearizable? true})})

(defrecord Inserts []
  rc/Workload
  (answer [_ c test {:keys [f value] :as op}]
    (case f
      ; Each client inserts into its own region.
      :add (do (rc/insert! c test (:home c) value)
               (assoc op :type :ok))
      :read (assoc op :type :ok
                   :value (into [] (mapcat #(map (comp parse-long rc/text) (rc/scan-region c test %)))
                                (db/regions test))))))

(defn insert-checker
  "No acknowledged insert is lost, none is there twice, and none that was refused."
  []
  (reify checker/Checker
    (check [_ test history opts]
      (let [of (fn [type] (into #{} (comp (filter #(and (= :add (:f %)) (= type (:type %)))) (map :value)) history))
            final (last (filter #(and (= :read (:f %)) (= :ok (:type %))) history))
            found (frequencies (:value final))
            lost (set/difference (of :ok) (set (keys found)))
            refused (set/intersection (of :fail) (set (keys found)))
            unexpected (set/difference (set (keys found)) (of :invoke))
            twice (into #{} (comp (filter #(< 1 (val %))) (map key)) found)]
        {:valid? (boolean (and final (every? empty? [lost refused unexpected twice])))
         :acknowledged (count (of :ok)) :unknown (count (of :info)) :found (count found)
         :lost lost :refused refused :unexpected unexpected :twice twice}))))

(defn insert-workload [opts]
  {:client (rc/client (->Inserts))
   :generator (adds)
   :final-generator (gen/each-thread {:f :read})
   :checker (insert-checker)})

(defrecord Scans []
  rc/Workload
  (answer [_ c test {:keys [f value] :as op}]
    (let [region (rc/home test)]
      (case f
        :add (do (rc/write! c test region [(rc/put test (format "scan/%06d" value) value)])
                 (assoc op :type :ok))
        :read (let [found (rc/scan-region c test region)]
                (assoc op :type :ok :value {:names (mapv rc/record-name found)
                                            :elements (into (sorted-set) (keep #(element "scan/" %)) found)}))))))

(defn scan-checker
  "A scan has every element whose addition was acknowledged before the scan began, none whose addition had not begun when it ended,
  and all names in order, each once. All elements are in one range."
  []
  (reify checker/Checker
    (check [_ test history opts]
      (loop [ops (seq history) begun #{} acked #{} reads {} n 0 bad []]
        (if-let [{:keys [type f value process] :as op} (first ops)]
          (let [more (next ops)]
            (cond
              (and (= f :add) (= type :invoke)) (recur more (conj begun value) acked reads n bad)
              (and (= f :add) (= type :ok)) (recur more begun (conj acked value) reads n bad)
              (and (= f :read) (= type :invoke)) (recur more begun acked (assoc reads process acked) n bad)
              (and (= f :read) (= type :ok))
              (let [{:keys [names elements]} value
                    missing (set/difference (get reads process) elements)
                    unwritten (set/difference (set elements) begun)
                    ordered (= names (vec (sort (distinct names))))]
                (recur more begun acked reads (inc n)
                       (if (and ordered (empty? missing) (empty? unwritten))
                         bad
                         (conj bad {:index (:index op) :missing missing :unwritten unwritten :ordered ordered}))))
              :else (recur more begun acked reads n bad)))
          {:valid? (and (pos? n) (empty? bad)) :scans n :acknowledged (count acked) :bad (take 10 bad) :bad-count (count bad)})))))

(defn scan-workload [opts]
  {:client (rc/client (->Scans))
   :generator (gen/reserve (max 1 (quot (:concurrency-number opts) 3)) (gen/repeat {:f :read}) (adds))
   :final-generator (gen/each-thread {:f :read})
   :checker (scan-checker)})
