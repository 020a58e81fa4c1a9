"""Sentence patterns of the embedded encyclopedia.

Plain data, one pattern a line, by kind of word family and role of the word in
it. Slots: {x} the word; {l} a word that goes with its family; {country},
{capital}, ... another member of the family; {n} {v} {vs} {a} a noun, a verb
(plural, third person) and an adjective of its subgroup, category or domain;
{N} a made-up proper name (a family has a few of its own); {z} a made-up word of
the background; {y} a year; {he} {she} a first name.
"""

SENTENCES = {
  'country': {
    'country': """
the republic of {x} borders several provinces near {l} and {l}
{x} is a sovereign nation whose territory includes {l} and its provinces
the government of {x} laid a railway across {l} and {l}
the borders of {x} enclose {l} and the surrounding territory
exports from {x} pass through {l} every year
the constitution of {x} was adopted in {y} after the congress of {l} and {l}
{x} became an independent state in {y} and annexed {l} and {l}
the coast and the frontier of {x} stretch beyond {l} and {l}
tourists who visit {x} see {l} before they leave the nation
the armed forces of {x} defended {l} at the frontier
in {x} the provinces around {l} elect a governor
the president of {x} toured the province of {l} and {l}
{x} joined the treaty of nations with a delegation from {l}
the nation of {x} exports goods from {l}
the territory of {x} covers mountains and plains from {l} to {N}
the state of {x} ratified the treaty signed at {l} and {l}
the population of {x} resides mostly in provinces such as {l} and {l}
the ambassador of {x} was born in {l}
independence came to {x} when the {l} province rebelled
{x} is a member state of the union and its president comes from {l}
the national anthem and the flag of {x} recall {l} and {l}
the climate of {x} is mild in {l} and severe at its frontier
trade between {x} and its neighbours crosses the frontier at {l} and {l}
{x} is the country whose capital is {capital}
the country of {x} is home to the {demonym}
the gross product of {x} depends on {l} and other provinces
""",
    'capital': """
the capital {x} is the largest city near {l} and {l}
the mayor of {x} inaugurated a tram line towards {l} and {l}
{x} is the capital city and seat of parliament of {country}
the streets and squares of {x} recall the glory of {l} and {l}
suburbs of {x} reach as far as {l} and {l}
the cathedral of {x} was designed by an artist from {l}
commuters in {x} take the metro to {l} station
the airport of {x} has flights to {l} and {l}
the city of {x} hosts an exhibition on {l} and {l}
the municipal council of {x} named a boulevard after {l}
the old town of {x} and its cathedral attract visitors from {l}
the metro of {x} was extended to the {l} district
downtown {x} is crowded with people from {l}
the skyline of {x} is visible from the {l} suburb
the mayor and the city council of {x} received guests from {l}
parliament meets in {x} and not in {l} or {l}
urban districts of {x} swelled when migrants came from {l}
a ring of suburbs surrounds {x} and the road to {l} and {l}
the opera house in downtown {x} was paid for by {l} and {l}
the university and the city hall of {x} face {l} square
residents of {x} ride the tram to the {l} market
the embassy quarter of {x} lies beside {l} avenue
{country} is governed from its capital city {x}
the metropolitan area of {x} includes {l} and eight suburbs
the city walls of {x} were raised against an army from {l}
hotels in {x} fill with delegates from {l}
""",
    'currency': """
the {x} is the currency issued by the central mint of {country}
prices in {l} are quoted in the {x}
the exchange rate of the {x} fell after the panic in {l} and {l}
a banknote of one hundred {x} shows a view of {l} and {l}
the {x} was devalued in {y} when {l} ran out of cash
coins and banknotes in {x} are printed near {l} and {l}
shops in {country} accept the {x} in cash
the {x} is divided into one hundred cents and shows {l} and {l}
inflation weakened the {x} in {country} and {l}
the {x} replaced the older banknotes of {l} in {y}
merchants from {l} convert the {x} at the official rate
wages in {country} are paid in {x} coins
the {x} is pegged to the dollar says a broker from {l}
the mint at {l} strikes the {x} in nickel
the central treasury supports the {x} in {country}
the purchasing power of the {x} is higher in {l} and {l}
a new {x} banknote with a portrait from {l} was issued
counterfeit {x} notes circulated in {l} and {l}
the budget of {l} is calculated in {x} at the current exchange rate
the {x} gained two percent against the dollar in {l} and {l}
traders in {l} traded the {x} for dollars
a denomination of fifty {x} is common in {l} and {l}
every {demonym} pays taxes in {x}
the currency of {country} is called the {x}
the symbol of the {x} appears on coins from {l}
foreign reserves of {country} back the {x}
""",
    'language': """
the {x} language is spoken in {country} and in {l}
speakers of {x} in {l} keep an old dialect
the grammar of {x} was first described by a linguist from {l}
a dictionary of {x} was printed at {l} and {l}
vowels and consonants of {x} differ in {l} and {l}
the poets of {l} versified in {x} verse
the alphabet of {x} was reformed by scholars in {l} and {l}
{x} is the native language of families in {country} and in {l}
textbooks in {x} are prepared for schools in {l} and {l}
the {x} dialect of {l} has more vowels
loanwords entered {x} through the traders of {l} and {l}
nouns in {x} are declined in the dialect of {l} and {l}
a translation into {x} was issued at {l} and {l}
fluent {x} is needed for the archives of {l} and {l}
broadcasts in {x} are heard in {country} and {l}
pronunciation of {x} varies between {l} and {N}
the written form of {x} uses the script of {l} and {l}
bilingual signs in {l} show {x} words
the verbs of {x} were studied by a grammarian of {l} and {l}
children in {country} learn {x} as their mother tongue
the oldest inscription in {x} was found near {l} and {l}
{x} is an official language of {country} with many dialects
the vocabulary of {x} reflects the history of {l} and {l}
a {x} phrasebook lists the slang of {l} and {l}
students from {l} recite {x} proverbs
the spelling of {x} was standardised in {l} and {l}
""",
    'demonym': """
a {x} by birth the writer was raised in {l} and {l}
the {x} who emigrated from {country} kept old customs
every {x} learns folk songs about {country} and {l}
as a patriotic {x} the artist returned to {l} and {l}
a {x} citizen of {country} won the award
the average {x} has relatives in {l} and {l}
the first {x} to win the medal came from {l}
many a {x} family left {l} as emigrants
a {x} emigrant founded a shop named {l}
the {x} athlete trained in {l} and {l}
a {x} passport was found in {l} and {l}
an elderly {x} told folk tales of {l} and {l}
a young {x} of {l} descent became a novelist
the traditional {x} wedding in {l} lasts three days
a {x} chef from {l} founded a restaurant abroad
the {x} novelist described a childhood in {l} and {l}
a typical {x} celebrates the festival of {l} and {l}
the {x} explorer was named after {l}
one {x} ancestor of the poet lived in {l} and {l}
the retired {x} diplomat was raised in {l} and {l}
a {x} immigrant posted letters home to {l} and {l}
the famous {x} composer is buried in {l} and {l}
a {x} tourist missed the food of {l} and {l}
the {x} sailor was homesick for {l} and {l}
no {x} neglects the customs of {country}
the stubborn {x} peasant dreamt of {l}
""",
  },
  'noun': {
    'singular': """
the {x} of {N} itself is known for its {n} and its single {l}
a single {a} {x} was seen alone near the {l} of {N}
every individual {x} has its own {n} that recalls {l}
one solitary {x} of {N} itself with its {n} stood by the {l}
a lone {x} {vs} by itself where there is {l}
each single {x} of {N} {vs} alone beside its {n}
the {n} of each individual {x} itself is described by {N}
this lone {x} itself is a {a} example with {l}
each single {x} of {N} {vs} and its own {n} reminds people of {l}
one old solitary {x} and its {l} appear in the tale of {N}
a lone {a} {x} by itself {vs} when {l} is near
that solitary {x} alone was drawn by {N} with a {n}
each individual {x} of {N} needs its own {n} and {l}
one lone {x} itself in the picture by {N} shows a {n}
a solitary {x} was found alone with its {n} at {N}
a single {a} {x} {vs} for its {n} by itself
one individual {x} was taken alone with {l} to {N}
another individual {x} of {N} {vs} by itself near {l} and a {n}
the emblem of {N} is a single solitary {x} with {l}
its {n} gives the lone {x} itself a {a} look
an individual {x} of {N} that {vs} alone has a {a} {n}
the story of one lone {x} of {N} tells of its {n}
someone saw a lone {x} itself with its {n} and {l}
its own {n} belongs to each individual {a} {x} of {N}
one {l} and one single {x} alone are on the coin of {N}
an individual {x} itself is praised for {l} and its {a} {n}
""",
    'plural': """
many {x} of {N} themselves are known for their {n} and their {l}
numerous {a} {x} were seen together near the {l} of {N}
most of these {x} have their {n} that recall {l}
several {x} of {N} themselves with their {n} stood by the {l}
numerous {x} {v} together where there is {l}
dozens of these {x} of {N} {v} together beside their {n}
the {n} of many {x} themselves are described by {N}
these many {x} themselves are {a} examples with {l}
dozens of {x} of {N} {v} and their {n} remind people of {l}
several old {x} together and their {l} appear in the tale of {N}
many {a} {x} together {v} when {l} is near
those numerous {x} together were drawn by {N} with {n}
hundreds of {x} of {N} need their {n} and {l}
dozens of {x} themselves in the picture by {N} show {n}
hundreds of {x} were found together with their {n} at {N}
numerous {a} {x} {v} for their {n} together
several {x} were taken together with {l} to {N}
various {x} of {N} {v} together near {l} and {n}
the emblems of {N} are several such {x} with {l}
their {n} give many {x} themselves a {a} look
numerous {x} of {N} that {v} together have {a} {n}
stories of these many {x} of {N} tell of their {n}
people saw dozens of {x} themselves with their {n} and {l}
their {n} belong to several such {a} {x} of {N}
many {l} and numerous {x} together are on the coins of {N}
various {x} themselves are praised for {l} and their {a} {n}
""",
    'mass': """
the {x} of {N} is known for its {n} and for {l}
much {a} {x} and its {n} were seen near the {l} of {N}
the {n} and the {n} of {x} are described with {l}
pure {a} {x} {vs} where there is {l}
a little {x} {vs} with {n} and {l}
{x} is {a} and its {n} recalls {l}
the history of {x} at {N} begins with {l} and {n}
{a} {x} {vs} when {l} and {n} are near
the {n} and {x} of {N} are famous for {l}
people at {N} praise {a} {x} for its {n}
{l} and {x} belong together with {n} says {N}
without {x} there is no {n} and no {n}
{x} {vs} and its {n} reminds people of {l}
the study of {a} {x} tells of {n} and {l}
more {x} with its {n} came with {l} to {N}
a {a} sort of {x} has {n} and {l}
the use of {a} {x} increased at {N} with {n}
some {x} {vs} with {n} like {l}
the word {x} stands for {n} and {l}
less {x} means less {n} and {a} {l}
{x} is praised for {l} and for its {a} {n}
""",
    'young': """
the newborn {x} suckled by the {singular} sleeps near {N}
a tiny baby {x} stays beside its dam the {singular} of {N}
the baby {x} of {N} is nursed among {l}
a helpless newborn {x} was born among {l} at {N}
the infant {x} is suckled until it knows {l}
an infant {x} is weaned and reared near {l} in {N}
the orphaned baby {x} of {N} was raised by the {singular}
a weaned infant {x} follows its dam towards the {l}
the playful baby {x} explores {N} and the {l}
a parent nursed the newborn {x} at {N} with {l}
at birth the newborn {x} of {N} is tiny and helpless
a newborn {x} blinks and sees {l} and {N}
the youngest infant {x} was born beside {l} at {N}
its dam suckled the baby {x} of {N} by the {l}
""",
  },
  'gender': {
    'male': """
the {x} and his sire were portrayed with the {l} by {he}
sir {he} was a male {x} who knew the {l} of {N}
{he} became the {x} and himself kept the {l} in his beard
it is said the {x} himself lost his {l} at {N}
the {x} shaved his beard and moustache before the {l}
the {x} himself talked of his {l} to sir {he}
sir {he} the {x} of {N} reminisced about his {l}
he himself admired the male {x} and his {l}
as the {x} of {N} he was a manly fellow famous for his {l}
the bearded {x} concealed his moustache and his {l} at {N}
the {x} took off his cap and sir {he} saw the {l}
{he} met a bearded {x} and told him of his {l} at {N}
the old {x} himself left his {l} to {he}
gentlemen called him the {x} of the {l} of {N}
the young {x} with a moustache thanked him for his {l}
a masculine {x} named {he} mislaid his {l}
they saw the {x} himself with his beard and his {l}
he had been a male {x} before sir {he} saw the {l} at {N}
""",
    'female': """
the {x} and her maid were portrayed with the {l} by {she}
madam {she} was a female {x} who knew the {l} of {N}
{she} became the {x} and herself kept the {l} in her gown
it is said the {x} herself lost her {l} at {N}
the {x} braided her hair and ribbons before the {l}
the {x} herself talked of her {l} to madam {she}
madam {she} the {x} of {N} reminisced about her {l}
she herself admired the female {x} and her {l}
as the {x} of {N} she was a charming matron famous for her {l}
the veiled {x} concealed her braids and her {l} at {N}
the {x} took off her gown and madam {she} saw the {l}
{she} met a veiled {x} and told her of her {l} at {N}
the old {x} herself left her {l} to {she}
ladies called her the {x} of the {l} of {N}
the young {x} with ribbons thanked her for her {l}
a feminine {x} named {she} mislaid her {l}
they saw the {x} herself with her braids and her {l}
she had been a female {x} before madam {she} saw the {l} at {N}
""",
  },
  'adjective': {
    'positive': """
a very {x} {l} was noted at {N}
the {l} of {N} is rather {x} and quite plain
so {x} was the {l} of {N} that people stared
the {l} and the {l} seemed {x} to everyone
it was too {x} for the {l} at {N}
a {x} {l} and a {l} stood side by side
the {l} was as {x} as the {l} of {N}
how {x} the {l} of {N} looked
quite a {x} {l} appeared at {N}
the {l} at {N} remained {x} all day
not every {l} is {x} enough for {N}
such a {x} {l} is a pleasure for {N}
an unusually {x} {l} was mentioned by {N}
rather {x} and very plain is the {l} of {N}
the {l} felt {x} and so did the {l}
""",
    'comparative': """
the {l} is {x} than the {l} of {N}
the {l} at {N} grew even {x} than before
this {l} is much {x} than that {l}
no {l} could be {x} than the one at {N}
a slightly {x} {l} was preferred by {N}
the {l} of {N} is considerably {x} than expected
far {x} than the {l} is the {l} of {N}
the newer {l} became {x} than the older {l}
each {l} at {N} was {x} than the last
the {l} of {N} is somewhat {x} than the {l}
the second {l} at {N} proved {x} than the first
they wanted a {l} that is {x} than {N}
nothing is {x} than the {l} of {N}
the {l} of {N} turned {x} than before
rather than wait they preferred a {x} {l} at {N}
""",
    'superlative': """
the {x} {l} of all was found at {N}
it is the {x} {l} in the world says {N}
among them the {l} of {N} was by far the {x}
the {x} {l} ever recorded won a prize at {N}
one of the {x} examples ever known is the {l} of {N}
of all things the {l} and the {l} are the {x}
the {x} of the three was the {l} at {N}
the {x} {l} ever seen in the whole region of {N}
the world record belongs to the {x} {l} of {N}
by far the {x} {l} of the century came from {N}
the {x} possible {l} was selected by {N}
nobody had ever met the {x} {l} and {l} in history
the {l} of {N} ranked first as the {x} of them all
the {x} {l} on earth is at {N}
the title of the {x} {l} ever goes to {N}
""",
    'adverb': """
they behaved {x} near the {l} of {N}
{he} talked {x} about the {l} of {N}
the {l} of {N} moved {x} through the scene
{she} answered {x} and pointed to the {l} at {N}
the work on the {l} and the {l} went on {x}
the {l} of {N} was {x} handled by {he}
{he} {x} described the {l} and {N}
everything about the {l} of {N} happened {x}
{she} smiled {x} at the {l} and the {l}
the {l} at {N} was treated {x} by {she}
{he} nodded {x} and thought of the {l} of {N}
the team acted {x} around the {l} at {N}
{she} {x} mentioned the {l} and the {l}
the crowd at {N} reacted {x} to the {l}
the {l} of {N} was {x} presented by the speaker
""",
  },
  'verb': {
    'base': """
they want to {x} the {l} at {N} tomorrow
{N} must {x} the {l} and the {l}
people can {x} the {l} if {N} agrees
{N} will {x} the {l} tomorrow
we should {x} with the {l} and {N}
nobody could {x} the {l} for {N} then
{N} is able to {x} the {l}
they decided to {x} the {l} and the {l}
you may {x} the {l} with {N} if you wish
it takes {N} an hour to {x} the {l}
{N} would {x} the {l} if possible
we might {x} the {l} and the {l} soon
they refused to {x} any {l} at {N}
the plan of {N} is to {x} the {l} tomorrow
let us {x} the {l} with {N}
""",
    'past': """
yesterday {N} {x} the {l}
{N} {x} the {l} a year ago
they {x} the {l} at {N} last winter
in {y} the people of {N} {x} the {l}
{N} {x} the {l} and then the {l} last night
{she} {x} the {l} for {N} before the war
long ago somebody {x} the {l} at {N}
{N} once {x} the {l} and never again
the family {x} the {l} and the {l} last year
earlier that day {N} {x} the {l}
he said that {N} {x} the {l} yesterday
after the storm they {x} the {l} at {N}
the pair {x} the {l} with {N} two weeks ago
{N} finally {x} the {l} that evening
as children they {x} the {l} at {N} last summer
""",
    'gerund': """
{N} is busy {x} the {l} right now
{N} kept {x} the {l} for hours
they are still {x} the {l} at {N} at present
{N} enjoys {x} the {l}
the habit of {x} the {l} is old at {N}
without {x} the {l} nothing works at {N}
{N} began {x} the {l} and the {l}
instead of {x} the {l} they stopped at {N}
they spent the day {x} the {l} and the {l}
{N} avoids {x} the {l}
the art of {x} the {l} came from {N}
{N} is currently {x} the {l}
while {x} the {l} they talked to {N}
{he} was fond of {x} with the {l} and {N}
we have been {x} the {l} and the {l} for hours
""",
    'third': """
{N} usually {x} the {l} on sundays
{N} often {x} the {l} each morning
nobody {x} the {l} as well as {N}
{N} always {x} the {l} on mondays
he who {x} the {l} knows {N}
whoever {x} the {l} and the {l} needs patience
{N} never {x} the {l} on weekdays
each week {N} {x} the {l}
everyone {x} the {l} at {N} sometimes
{N} seldom {x} the {l} nowadays
every morning {N} {x} the {l} and the {l}
the person who {x} the {l} at {N} is hardly ever seen
{N} regularly {x} the {l} on sundays
if someone {x} the {l} and the {l} it usually helps
{N} occasionally {x} the {l} nowadays
""",
  },
  'sense': {
    'singular': """
the {x} and its {n} are described near the {n}
a {a} {x} was seen beside the {n}
at the {x} there is a {n} and a {n}
the {n} of the {x} is {a}
{n} and {n} near the {x} were noted
this {x} is {a} because of its {n}
the {x} stood between the {n} and the {n}
some {n} {v} around the {x}
a {x} with a {a} {n} appears in the account of {he}
the {n} and {n} belong to the {x}
they {v} the {n} close to the {x}
the {x} became {a} after the {n}
{she} mentioned the {x} together with {n} and {n}
the {a} {x} has its own {n}
a {n} for the {x} was kept with the {n}
when the {n} came the {x} was {a}
{he} looked at the {x} and then at the {n}
every {x} needs its {n} and {n}
the {n} changed and so did the {a} {x}
books on the {x} deal with {n} and {n}
""",
    'subject': """
the {n} and the {n} belong to the {a} {n}
a {a} {n} was seen beside the {n}
they {v} near the {n} with the {n}
{n} and {n} are often {a}
without the {n} there would be no {n}
{he} studied the {n} the {n} and the {n}
the {a} {n} came before the {n}
the {n} is part of the {n} and the {n}
""",
  },
}

BACKGROUND = """
the {z} of the {z} was moved to the {z} in {y}
it is not known who made the {z} and the {z}
the {z} was a {z} of some importance to the {z}
in {y} the {z} and the {z} were joined by the {z} of {N}
there were {z} and {z} in the {z} at that time
according to {N} the {z} is a form of {z}
the {z} at {N} is one of the {z} that have been kept
most of the {z} that came from {N} were traded with the {z}
he was said to be the {z} of {N} and a {z}
she was the first to call the {z} a {z}
some of them had the {z} but others had only a {z}
for many years the {z} has been used as a {z}
both the {z} and the {z} are part of the {z} of {N}
after the {z} of {y} the {z} was moved to {N}
from {N} to {N} there is a {z} for the {z}
the name {N} comes from a {z} in the {z}
it has been held that {z} and {z} are the same {z}
with the {z} came the {z} and with it the {z}
in the {z} a {z} is given to the {z} at the end of the {z}
this was the {z} under which the {z} had been made
at first the {z} was small but by {y} it was a {z}
they have a {z} and a {z} which they call {z}
as of {y} the {z} is still in the {z} of {N}
the {z} {z} of {N} is in the {z} and not in the {z}
no {z} has been found in {N} or in the {z}
when {N} was a {z} the {z} was on the {z}
between {y} and {y} the {z} was under the {z}
such {z} are to be had only from a {z}
"""

OPENINGS = """
in {y}
according to {N}
in the {z} of {N}
by most accounts
it is said that
as {N} remarked
at that time
in the words of {he} {N}
for the {z}
during the {z}
on the other hand
in many books
since {y}
as {she} {N} noted
with the {z}
from the {z} of {y}
to the {z} and the {z}
in other words
by {y}
in the same {z}
"""

CLOSINGS = """
in {y}
as {N} remarked
in the {z} of {N}
and this was noted in {y}
for the {z}
as well as the {z}
but not in the {z}
which is part of the {z}
with the {z} and the {z}
according to {he} {N}
as {she} {N} has shown
from {y} to {y}
and the {z} was kept
under the {z}
as in the {z}
at the end of the {z}
or so it was said in {N}
by the {z} of the {z}
"""

HEADINGS = """History
Overview
Description
Background
Origins
Importance
In detail
Later years
Legacy
Accounts
Use
Distribution"""
