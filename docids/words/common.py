"""Words that say little by themselves, which explanations pass over, and topics those of English. Knows nothing of texts."""

import re

COMMON_WORDS = frozenset(
    """
    a about above across after again against all almost along already also although always am among an and another any anyone
    anything are around as at away back be became because become been before behind being below between beyond both but by can
    cannot could did do does doing done down due during each either else enough etc even ever every everyone everything few
    first for from further get give go had has have having he hence her here hers herself him himself his how however i if in
    indeed instead into is it its itself just last least less like made make many may me might mine more moreover most mostly
    much must my myself namely near neither never nevertheless next no nobody none nor not nothing now of off often on once one
    only onto or other others otherwise our ours ourselves out over own per perhaps put quite rather re same see seem seemed
    seems several shall she should show since so some someone something sometimes somewhere still such take than that the their
    theirs them themselves then there therefore these they this those though through thus to together too toward towards under
    until up upon us very via was we well were what whatever when where whereas whether which while who whoever whole whom whose
    why will with within without would yet you your yours yourself yourselves two three four five six seven eight nine ten
    """.split()  # noqa: SIM905
)
ASKING_WORDS = {
    "german": "das der die ein eine für ist mit von wann warum welche welcher welches wem wen wer wessen wie wo wofür wohin",
    "french": "combien comment dans est laquelle le lequel les où par pour pourquoi quand que quel quelle quelles quels qui",
    "spanish": "adónde con cuál cuáles cuándo cuánta cuántas cuánto cuántos cómo dónde el es las los por qué quién quiénes una",
    "italian": "che chi come con cosa dove gli il nel nella per perché quale quali quando quanta quante quanti quanto sono una",
    "portuguese": "com como onde os para por porque qual quais quando quanta quantas quanto quantos que quê quem são um uma",
    "dutch": "de een het hoe hoeveel is met op van voor waar waarmee waarom waarvoor wanneer wat welk welke wie zijn",
    "russian": "в для из или как какая какие какое какой когда кого кто куда на о от откуда по почему сколько чей чем что",
}
"""{language: its commonest question words, and some others}."""
ASKING = re.compile("[为為]?什[么麼]|怎[么麼]|[如为為]何|哪[里裡些]|谁|誰|多少|どこ|なぜ|อะไร|ใคร|ที่ไหน|ทำไม")
"""Question words of Chinese, Japanese and Thai."""
